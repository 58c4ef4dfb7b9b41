(() => {
  const pause = 1000;
  let isReading = false, isBehind = false;

  async function read() {
    const slider = document.getElementById("slider");
    if (slider && slider.value !== slider.max) return;
    const page = new DOMParser().parseFromString(await (await fetch("")).text(), "text/html");
    const open = [...document.querySelectorAll("details")].map((one) => one.open);
    const shown = [...page.body.children].filter((one) => one.tagName !== "SCRIPT" || one.type);
    document.title = page.title;
    document.body.replaceChildren(...shown);
    const details = [...document.querySelectorAll("details")];
    if (details.length === open.length) details.forEach((one, place) => { one.open = open[place]; });
    showNight();
  }

  async function catchUp() {
    isBehind = true;
    if (isReading) return;
    isReading = true;
    while (isBehind) {
      isBehind = false;
      await read().catch(() => {});
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
    isReading = false;
  }

  const events = new EventSource("events");
  events.onmessage = () => { document.body.classList.remove("stale"); catchUp(); };
  events.onerror = () => document.body.classList.add("stale");
})();
