"use strict";
const showNight = () => {
  const source = document.getElementById("data");
  if (!source) return;
  const night = JSON.parse(source.textContent), last = night.clocks.length - 1;
  const slider = document.getElementById("slider"), hand = document.getElementById("hand");
  const signs = [...document.querySelectorAll("[data-task]")].map((sign) => [sign, Number(sign.dataset.task)]);
  const atEnd = signs.map(([sign]) => [sign.textContent, sign.className]);

  function show(cell) {
    const isEnd = cell === last, states = new Array(night.tasks).fill(night.pending);
    for (const [at, task, state] of night.moves) {
      if (at > cell) break;
      states[task] = state;
    }
    signs.forEach(([sign, task], place) => {
      [sign.textContent, sign.className] = isEnd ? atEnd[place] : night.states[states[task]];
    });
    document.body.classList.toggle("past", !isEnd);
    hand.hidden = isEnd;
    hand.style.left = `${night.columns + cell}ch`;
    const counts = night.states.map(([, , word], state) => [states.filter((one) => one === state).length, word]);
    const words = counts.filter(([count]) => count).map(([count, word]) => `${count} ${word}`);
    document.getElementById("instant").textContent = `${night.clocks[cell]}  ${words.join(", ")}`;
  }

  document.getElementById("night").hidden = false;
  slider.addEventListener("input", () => show(Number(slider.value)));
  show(last);
};
showNight();
