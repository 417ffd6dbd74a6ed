'''Run entries: one cell -> one pure function -> one line of ``results.jsonl``.

How to write an entry
---------------------
An entry is a module found by its name: ``spectral2019/table1`` is ``mercer/experiments/spectral2019/table1.py``, ``sec7.4`` is
``sec7_4.py``, ``mlp-gp`` is ``mlp_gp.py``, ``thmE.1`` is ``thme_1.py`` (lower case, ``.`` and ``-`` become ``_``). Each paper's
folder has an ``__init__.py`` with a docstring only. No module: the entry is *not built yet*. There is nothing to register.
What was published (title, numbers, doubts, stand-ins, ``scale``) is in ``published/<paper>.toml``, not in the module::

    from mercer.experiments.cells import Cell, Outcome

    ROWS = {"smoke": 64, "small": 2000, "paper": 10_000}

    def cells(scale: str) -> list[Cell]:            # cheap: no data is read here
        return [
            Cell("spectral2019/table1", row="gamma 1, RFF 500", column="MNIST", data=["mnist"], seeds=3,
                 settings={"gamma": 1.0, "m": 500, "n": ROWS[scale]})
        ]

    def run(cell: Cell) -> Outcome:                 # pure: depends on the cell alone (and on the data's files)
        generator = torch.Generator().manual_seed(cell.seed)
        ...
        return Outcome(value=790.1, values={"low": 789.0}, note="")

    def draw(results: list[Result]) -> Figure: ...  # optional, for figures: the done results of this entry -> a picture

- ``row`` and ``column`` are spelled as in the TOML: that is how ours meets theirs. One run that gives a whole row of a table leaves
  ``column=""`` and puts one number for each column in ``Outcome.values``.
- ``seeds=3`` runs seeds 0, 1, 2 (``cell.seed``); mean and sample deviation are taken over them. ``seeds=None``: nothing is random.
- ``data=["mnist"]`` names the sets looked for in ``MERCER_DATA`` (the names of ``mercer.data.load``). One that is not there makes
  the cell *missing*, with how to get it. What ships with a dependency (digits, wine, breast_cancer) or is synthetic is not named.
  ``--no-download`` runs only the cells that name none.
- A stand-in (another set, a smaller network) is a line of ``stand_ins`` in the TOML; say it in ``note`` too where it is of one cell.
- An entry whose TOML says ``scale = "paper"`` is *paper scale only* at the other scales, and its ``cells`` is not asked.
- A loss that turns NaN: raise ``FloatingPointError("loss became NaN at step 12")``; the cell is *failed*, with that reason, and the
  run goes on. A non-finite number in the outcome fails the cell too. Warnings are kept in the log, not in the result.
- A check (``kind = "check"``) returns ``passed``. A claim of the paper that does not hold is ``passed=False``, a result; not an error.
- Before ``run`` the runner seeds torch's global generator from the cell, so a library that draws from it is repeatable too.

The run folder
--------------
``runs/<stamp>/run.json`` (what was asked, and one item of ``sessions`` for each start: versions, machine, threads) and
``runs/<stamp>/results.jsonl``, one JSON object a line, appended with one write and one fsync; a torn last line is ignored. Of two lines
with one ``key`` the later holds. ``mercer.experiments.read_results`` and ``summarise`` read it. Fields of a line:

    entry, row, column, seed, scale, key     which cell (row, column "" and key "<entry>" for the line of a whole entry)
    status      done | failed | missing | paper_scale_only | not_built
    value       number or null           values    {name: number}
    curves      {name: {"x": [], "y": []}}          arrays    {name: nested lists}
    passed      true | false | null      note      sentence for the reader: how to get the data, why not run
    error       "" or "TypeOfError: message"
    settings, data                       the cell's
    seconds, cpu_seconds                 of ``run`` alone
    started     ISO time, UTC
'''
