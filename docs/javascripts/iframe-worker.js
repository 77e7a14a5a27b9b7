"use strict";
// The search of this site runs in a worker, which browsers refuse to pages that were opened from disk. There, run its
// script in a hidden frame instead, which passes the same messages.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = frame.contentDocument.createElement("script");
      script.src = url;
      this.loaded = new Promise((resolve) => script.addEventListener("load", resolve));
      frame.contentDocument.head.append(script);
    }
    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
