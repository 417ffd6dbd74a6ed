
// Entries are folded: a link to one unfolds it, the filter hides those whose words lack what is typed.
(function () {
  var folds = Array.from(document.querySelectorAll("details.entry"));
  var reveal = function () {
    var target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    var fold = target && target.querySelector("details.entry");
    if (fold) { fold.open = true; target.scrollIntoView(); }
  };
  window.addEventListener("hashchange", reveal);
  document.querySelectorAll(".side a, .links a").forEach(function (link) {
    link.addEventListener("click", function () { window.setTimeout(reveal, 0); });
  });
  var unfold = document.getElementById("unfold");
  unfold.addEventListener("click", function () {
    var open = unfold.textContent === "Unfold all";
    folds.forEach(function (fold) { fold.open = open; });
    unfold.textContent = open ? "Fold all" : "Unfold all";
  });
  document.getElementById("find").addEventListener("input", function (event) {
    var words = event.target.value.toLowerCase().split(/\s+/);
    document.querySelectorAll("[data-find]").forEach(function (node) {
      var text = node.dataset.find.toLowerCase();
      node.hidden = !words.every(function (word) { return text.includes(word); });
    });
  });
  window.addEventListener("beforeprint", function () { folds.forEach(function (fold) { fold.open = true; }); });
  if (window.innerWidth < 1100) { document.querySelector(".side > details").open = false; }
  reveal();
})();
