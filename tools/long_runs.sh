#!/bin/sh
# Runs that can settle a claim, cheapest and most decisive first; each line says its estimated CPU minutes.
#
#   sh tools/long_runs.sh              all of them, one after the other, into runs/
#   sh tools/long_runs.sh NAME ...     those with these names
#
# A run that was stopped goes on where it was: every finished cell is on disk. When one is complete, store it with
# `python tools/record_run.py runs/NAME NAME` and rewrite the tables with `python tools/paper_tables.py`.
# Needs MERCER_DATA. One thread, so that two runs can share a machine.
set -u
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
runs="${RUNS:-runs}"
wanted="$*"

run() { # run NAME MINUTES ARGUMENTS of mercer reproduce
    name="$1"
    minutes="$2"
    shift 2
    case " $wanted " in
    *" $name "* | "  ") ;;
    *) return 0 ;;
    esac
    mkdir -p "$runs"
    if [ -f "$runs/$name/run.json" ]; then
        echo "$name: going on (about $minutes CPU minutes in all)"
        mercer reproduce --resume "$runs/$name" >>"$runs/$name.log" 2>&1 || echo "$name: see $runs/$name.log"
    else
        echo "$name: about $minutes CPU minutes"
        mercer reproduce "$@" -o "$runs/$name" >"$runs/$name.log" 2>&1 || echo "$name: see $runs/$name.log"
    fi
}

# Minutes each
run masoomi2020-theory 1 masoomi2020/thm2 masoomi2020/cor2 masoomi2020/claim6 --scale small
run masoomi2020-exp1 1 masoomi2020/exp1 --scale small --seeds 10
run jayasumana2021-sec5.2 1 jayasumana2021/sec5.2 --scale paper
run deng2022-cost 2 deng2022/cost --scale small --seeds 3
run deng2022-mlp-gp 4 deng2022/mlp-gp --scale small --seeds 3
run deng2022-ntk-digits 3 deng2022/ntk --scale small --seeds 3 --bundled --set steps=400
run chen2022-imdb 3 chen2022/table3 chen2022/table4 chen2022/fig2 chen2022/fig3 --scale small --seeds 3 --set rows=1000 --set test_rows=1000 --set epochs=5 --only "imdb, Kernel SGD" --only "imdb, AdaH" --only "imdb, ESGD" --only "imdb, L-BFGS" --only "imdb, R-L-BFGS" --only "imdb, SGD |" --only "imdb, SGD+M"
run chen2022-s-cov-second-order 5 chen2022/table3 chen2022/fig2 chen2022/fig3 --scale small --seeds 3 --set epochs=8 --only "s-cov, Kernel SGD" --only "s-cov, AdaH" --only "s-cov, ESGD" --only "s-cov, L-BFGS" --only "s-cov, R-L-BFGS"
run chen2022-pictures-and-texts-matrices 4 chen2022/fig4 --scale small --seeds 2 --set epochs=20 --only "s-cov, RBF" --only "s-cov, random PSD" --only "imdb, RBF" --only "imdb, random PSD"
run chen2022-rates-up-to-1 6 chen2022/table3 chen2022/table4 --scale small --seeds 3 --set rows=1500 --set test_rows=2000 --set epochs=20 --set tries=16 --only "mnist, Kernel SGD" --only "mnist, SGD, rates" --only "mnist, FunctionSpaceSGD" --only "usps, Kernel SGD" --only "usps, SGD, rates" --only "usps, FunctionSpaceSGD"
run masoomi2020-exp4-default 2 masoomi2020/exp4 --scale paper --seeds 3 --only ", ISM" --only ", W_s |" --only default
run deng2022-classic-64 6 deng2022/classic --scale paper --seeds 2 --only "N = 64"
run jayasumana2021-ablations-short 5 jayasumana2021/table6 jayasumana2021/table11 jayasumana2021/table12 --scale small --seeds 3
run jayasumana2021-table5-budgets 7 jayasumana2021/table5 --scale small --seeds 3
run deng2022-lla-plane 8 deng2022/lla --scale small --seeds 5 --bundled --set "function steps=2000"
run jayasumana2021-sphere-starts 12 jayasumana2021/table1 jayasumana2021/fig1 --scale small --seeds 40
run jayasumana2021-sphere-rates 25 jayasumana2021/table1 jayasumana2021/fig1 --scale small --seeds 40 --set "rates=[0.03,0.1,0.3]"
run deng2022-fig6-algorithm-1 35 deng2022/fig6 --scale small --seeds 3

# About an hour each
run masoomi2020-exp4 40 masoomi2020/exp4 --scale paper
run deng2022-classic 60 deng2022/classic --scale paper
run chen2022-usps-60-epochs 40 chen2022/table1 chen2022/table3 chen2022/table4 chen2022/fig2 chen2022/fig3 --scale paper --seeds 3 --set epochs=60 --only usps
run chen2022-usps 120 chen2022/table1 chen2022/table3 chen2022/table4 chen2022/fig2 chen2022/fig3 chen2022/fig4 chen2022/fig5 --scale paper --seeds 3 --only usps
run chen2022-mnist 100 chen2022/table1 chen2022/table3 chen2022/table4 chen2022/fig2 chen2022/fig3 chen2022/fig4 --scale paper --seeds 3 --set epochs=50 --only mnist
run chen2022-s-cov-long 40 chen2022/table4 chen2022/fig4 --scale small --seeds 3 --set rows=2000 --set epochs=20 --only s-cov
run chen2022-imdb-long 60 chen2022/table4 chen2022/fig4 --scale small --seeds 3 --set rows=5000 --set epochs=10 --only imdb

run deng2022-ntk-cifar10 30 deng2022/ntk --scale small --seeds 3 --set steps=400 --only CIFAR-10

# Hours each
run deng2022-lla-resnet20 90 deng2022/lla --scale small --seeds 3 --only ResNet-20
run deng2022-cnn-gp 120 deng2022/cnn-gp --scale paper --seeds 3 --set rows=6000 --set test_rows=2000 --set samples=300 --set steps=5000 --only "NeuralEF, CNN-GP" --only "Nystrom, CNN-GP |" --only "Nystrom, polynomial" --only "Nystrom, RBF"
run jayasumana2021-headline 300 jayasumana2021/table3 --scale small --seeds 3 --set rows=50000 --set test_rows=10000 --set epochs=15 --set batch=128 --only "ResNet-14 | Kernelized" --only "ResNet-14 | Mercer" --only "ResNet-20 | Softmax"
run jayasumana2021-ablations 300 jayasumana2021/table6 jayasumana2021/table7 jayasumana2021/table11 jayasumana2021/sec7.4 --scale small --seeds 2 --set rows=50000 --set test_rows=10000 --set epochs=45 --set batch=128 --set "rates=[0.1,0.03]"
run spectral2019-figures 120 spectral2019/fig1b spectral2019/fig2b spectral2019/fig3b --scale paper --seeds 3
run jayasumana2021-sentences 240 jayasumana2021/table4 --scale small --seeds 3 --only "MiniLM, fine-tuned"
