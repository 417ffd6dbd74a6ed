// Sort a table by the column whose heading is pressed; cells without a number come last.
document.querySelectorAll("th[data-sort]").forEach(function (heading) {
  var button = document.createElement("button");
  button.type = "button";
  button.textContent = heading.textContent;
  heading.replaceChildren(button);
  button.addEventListener("click", function () {
    var table = heading.closest("table");
    var place = Array.prototype.indexOf.call(heading.parentNode.children, heading);
    var down = heading.getAttribute("aria-sort") === "ascending";
    table.querySelectorAll("th[aria-sort]").forEach(function (other) { other.removeAttribute("aria-sort"); });
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    var value = function (row) {
      var cell = row.children[place];
      return "order" in cell.dataset ? cell.dataset.order : cell.textContent.trim();
    };
    var compare = function (a, b) {
      var x = value(a), y = value(b);
      if (x === "" || y === "") { return (x === "") - (y === ""); }
      var order = heading.dataset.sort === "number" ? x - y : x.localeCompare(y, undefined, { numeric: true });
      return down ? -order : order;
    };
    var body = table.tBodies[0];
    Array.from(body.rows).sort(compare).forEach(function (row) { body.appendChild(row); });
  });
});
