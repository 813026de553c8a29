// Measure how long a page takes to receive, render and paint a streamed response.
//
//   const response = await llmtrace.fetch("/chat", {method: "POST", body});  // else as `fetch`
//   const source = new llmtrace.EventSource("/chat?q=...");                  // else as it was
//
// The page gets the browser's own objects; bytes, errors, cancelling and aborting are not touched.
// Of each response one small JSON beacon is sent. No dependency; a classic script and, served as
// llmtrace.mjs, a module. Documented in docs/instrument/browser.md. Apache-2.0.
(function (root) {
  "use strict";
  const doc = root.document;
  const nativeFetch = root.fetch;
  const NativeEventSource = root.EventSource;
  const settings = {beacon: "/llmtrace/beacon", origins: []};
  const open = new Set(); // responses on their way
  const MAX_OPEN = 100; // a page may drop responses unread
  const WAITS_KEPT = 64; // a long task is reported a moment after it blocked a wait
  const EAGER_MS = 1; // a task takes a moment to start, on an idle page too
  const PATIENCE_MS = 1000;

  const now = () => root.performance.now();
  const visible = () => doc !== undefined && doc.visibilityState === "visible";

  // Every hook goes through here: what breaks in this file must not break the page.
  const safely = (hook) => function (...args) {
    try {
      return hook.apply(this, args);
    } catch (error) {
      return undefined;
    }
  };

  const hex = (bytes) => Array.from(root.crypto.getRandomValues(new Uint8Array(bytes)),
    (byte) => byte.toString(16).padStart(2, "0")).join("");

  // Once the page's main thread has nothing else to do.
  function whenFree(then) {
    if (root.scheduler && root.scheduler.postTask) {
      root.scheduler.postTask(safely(then), {priority: "background"}).catch(() => {});
    } else {
      root.setTimeout(safely(then), 0);
    }
  }

  // After the frame that shows what is in the document now: a task posted from a frame's callback
  // runs once that frame is drawn.
  function whenPainted(then) {
    root.requestAnimationFrame(safely(() => {
      const {port1, port2} = new MessageChannel();
      port1.onmessage = safely(() => {
        port1.close();
        then(now());
      });
      port2.postMessage(0);
    }));
  }

  // --- one response while it comes -------------------------------------------------------------

  // Times are milliseconds of the page's own clock. The page either waits for the next chunk, or
  // keeps the stream waiting: from a chunk's arrival until it has requested the next and is free to
  // take it. A long task that begins during a wait is its own doing, too.
  class Answer {
    constructor(kind, url, options, traceId) {
      Object.assign(this, {
        kind, url, options: options || {}, traceId: traceId || hex(16), spanId: hex(8),
        reading: 1, // chunks requested; the call itself counts as one
        askedAt: null, probing: false, // requested, and not known to be free
        waited: 0, waitedAtContent: 0, blockedBefore: 0, blockedAfter: 0, waits: [],
        first: null, heldBefore: 0, firstByte: null, lastContent: null, maxGap: null, chunks: 0,
        renders: 0, paints: 0, lags: 0, lagSum: 0, lagMax: 0, unshown: null, painting: false,
        firstPaint: null, lastPaint: null, epoch: 0, // counts how often the page was hidden
        hidden: 0, longFrames: null, longFramesMs: null, whole: false, status: null,
        stop: null, end: null, observers: [],
        unread: false, // a body was there, and no read of it was seen
      });
      this.start = this.waitsSince = now(); // null while it does not wait
      this.hiddenSince = doc && !visible() ? this.start : null;
      if (open.size >= MAX_OPEN) open.values().next().value.forget();
      open.add(this);
      this.observe();
    }

    // Both ids, in groups that a language tag may consist of. Nothing about sampling: whether the
    // trace is sampled is the application's decision.
    get mark() {
      return (this.traceId + this.spanId).match(/.{8}/g).join("-");
    }

    // What the browser itself reports: long tasks and frames, changes of the document, the network.
    observe() {
      const types = (root.PerformanceObserver || {}).supportedEntryTypes || [];
      const watch = (type, each) => {
        if (!types.includes(type)) return false;
        const take = safely((entries) => entries.forEach(each));
        const observer = new PerformanceObserver((list) => take(list.getEntries()));
        observer.observe({type});
        this.observers.push([observer, take]);
        return true;
      };
      const frame = (entry) => {
        const ms = overlap(entry, this.start, this.end || Infinity);
        if (!ms) return;
        this.longFrames += 1;
        this.longFramesMs += ms;
      };
      const frames = watch("long-animation-frame", frame);
      const tasks = watch("longtask", (entry) => {
        this.blocked(entry);
        if (!frames) frame(entry);
      });
      if (frames || tasks) this.longFrames = this.longFramesMs = 0;
      watch("resource", (entry) => {
        const mine = entry.name === this.url && entry.startTime >= this.start - 1;
        if (mine && !this.entry) this.entry = entry;
      });
      if (!doc) return;
      const observer = new MutationObserver(safely(() => this.rendered()));
      observer.observe(this.options.element || doc.documentElement,
        {childList: true, characterData: true, subtree: true});
      this.observers.push([observer, () => {}]);
    }

    blocked(entry) {
      const running = this.waitsSince === null ? [] : [[this.waitsSince, now()]];
      for (const [from, to] of [...this.waits, ...running]) {
        const ms = overlap(entry, from, to);
        if (this.first === null || from < this.first) this.blockedBefore += ms;
        else this.blockedAfter += ms;
      }
    }

    // The page requests the next chunk.
    asks() {
      this.reading += 1;
      if (this.stop || this.waitsSince !== null) return;
      if (this.askedAt === null) this.askedAt = now();
      if (!this.probing || !visible()) this.waitsSince = this.askedAt;
    }

    // The page was given something: from here on its time is its own. Returns the time.
    got() {
      const at = now();
      if (this.stop) return at;
      if (this.waitsSince !== null) {
        this.waited += at - this.waitsSince;
        this.waits.push([this.waitsSince, at]);
        if (this.waits.length > WAITS_KEPT) this.waits.shift();
      }
      this.reading = Math.max(0, this.reading - 1);
      this.askedAt = this.reading ? at : null;
      this.waitsSince = visible() ? null : this.askedAt; // hidden pages' tasks are put off
      if (this.probing) return at;
      this.probing = true;
      whenFree(() => {
        this.probing = false;
        if (this.stop || this.askedAt === null || this.waitsSince !== null) return;
        const free = now();
        this.waitsSince = free - this.askedAt > EAGER_MS ? free : this.askedAt;
      });
      return at;
    }

    // A chunk came, at the time that `got` returned.
    piece(value, at) {
      if (this.stop) return;
      this.last = value;
      if (this.firstByte === null) this.firstByte = at;
      if (!this.carries(value)) return;
      this.chunks += 1;
      if (this.first === null) {
        this.first = at;
        this.heldBefore = at - this.start - this.waited;
      } else {
        this.maxGap = Math.max(this.maxGap, this.waited - this.waitedAtContent);
      }
      this.waitedAtContent = this.waited;
      this.lastContent = at;
      if (this.unshown === null && visible()) this.unshown = at;
    }

    // Whether a piece carries content: an event stream's comments only keep it alive.
    carries(value) {
      if (this.options.content) return Boolean(this.options.content(value));
      if (value === undefined || value === null || size(value) === 0) return false;
      return !this.events || this.first !== null || text(value).includes("data:");
    }

    // The page changed the document.
    rendered() {
      if (this.first === null || this.end) return;
      this.renders += 1;
      const [epoch, shown] = [this.epoch, this.unshown];
      this.unshown = null;
      if (this.painting || !visible()) return;
      this.painting = true;
      whenPainted((at) => {
        if (epoch !== this.epoch || this.end) return;
        this.painting = false;
        this.paints += 1;
        this.lastPaint = at;
        if (this.firstPaint === null) this.firstPaint = at;
        if (shown !== null) {
          this.lags += 1;
          this.lagSum += at - shown;
          this.lagMax = Math.max(this.lagMax, at - shown);
        }
        if (this.closing) this.finish();
      });
    }

    // The page was hidden, or is shown again: what is hidden is not painted.
    shown(isShown) {
      if (isShown && this.hiddenSince !== null) {
        this.hidden += now() - this.hiddenSince;
        this.hiddenSince = null;
      } else if (!isShown && this.hiddenSince === null) {
        this.hiddenSince = now();
        this.epoch += 1;
        this.painting = false;
        this.unshown = null;
        if (this.waitsSince === null) this.waitsSince = this.askedAt && this.hiddenSince;
        if (this.stop) this.finish();
      }
    }

    // The stream is over. What is still to be painted of it belongs to it.
    ends(outcome, error, atOnce) {
      if (this.stop) return;
      this.stop = {at: this.got(), outcome, error};
      this.waitsSince = null;
      if (atOnce || !visible() || this.first === null) {
        this.finish();
        return;
      }
      whenPainted(() => {
        this.closing = true;
        if (!this.painting) this.finish();
      });
      // A window may be covered and never painted; twice, since a timer may be due before the
      // frame that a long task delayed.
      const later = (then) => root.setTimeout(safely(then), PATIENCE_MS);
      later(() => later(() => this.finish()));
    }

    finish() {
      if (this.end) return;
      this.end = Math.max(this.stop.at, visible() ? this.lastPaint : 0);
      if (this.hiddenSince !== null) this.hidden += Math.max(0, this.end - this.hiddenSince);
      for (const [observer, take] of this.observers) take(observer.takeRecords());
      this.forget();
      send(this.beacon());
    }

    forget() {
      open.delete(this);
      this.stop = this.stop || {};
      this.end = this.end || now();
      for (const [observer] of this.observers.splice(0)) observer.disconnect();
      if (this.unhook) this.unhook();
      this.last = null;
    }

    beacon() {
      const since = (at) => (at === null ? null : at - this.start);
      const withDocument = (figure) => (doc ? figure : null);
      const e2e = this.end - this.start;
      const content = this.first !== null && !this.whole;
      const before = content ? this.heldBefore : e2e - this.waited;
      return {
        v: 1, trace_id: this.traceId, span_id: this.spanId, kind: this.whole ? "whole" : this.kind,
        outcome: this.stop.outcome, error_type: this.stop.error, http_status: this.status,
        e2e_ms: e2e, ttft_ms: content ? since(this.first) : null,
        held_before_ms: before + this.blockedBefore,
        held_after_ms: content ? e2e - this.waited - before + this.blockedAfter : 0,
        blocked_ms: this.longFrames === null ? null : this.blockedBefore + this.blockedAfter,
        first_byte_ms: since(this.firstByte), last_content_ms: since(this.lastContent),
        max_gap_ms: this.maxGap, chunks: this.chunks,
        renders: withDocument(this.renders), paints: withDocument(this.paints),
        first_paint_ms: since(this.firstPaint),
        paint_lag_ms: this.lags ? this.lagSum / this.lags : null,
        max_paint_lag_ms: this.lags ? this.lagMax : null,
        long_frames: this.longFrames, long_frames_total_ms: this.longFramesMs,
        hidden_ms: withDocument(this.hidden), ...network(this.entry), age_ms: now() - this.end,
      };
    }
  }

  function overlap(entry, from, to) {
    const [start, end] = [entry.startTime, entry.startTime + entry.duration];
    return Math.max(0, Math.min(end, to) - Math.max(start, from));
  }

  function size(value) {
    return value.byteLength === undefined ? value.length : value.byteLength;
  }

  function text(value) {
    if (typeof value === "string") return value;
    return value.byteLength === undefined ? "data:" : new TextDecoder().decode(value);
  }

  // What Resource Timing reports: nothing of another origin that does not allow it.
  function network(entry) {
    if (!entry || !entry.requestStart) return {};
    const secure = entry.secureConnectionStart;
    const gateways = (entry.serverTiming || []).filter(({name}) => /^(gateway|gw)$/i.test(name));
    const dns = entry.domainLookupEnd - entry.domainLookupStart;
    const connect = (secure || entry.connectEnd) - entry.connectStart;
    const tls = secure ? entry.connectEnd - secure : 0;
    return {
      client_wait_ms: entry.requestStart - entry.startTime - dns - connect - tls,
      dns_ms: dns, connect_ms: connect, tls_ms: tls, protocol: entry.nextHopProtocol || null,
      gateway_ms: gateways.length ? gateways.reduce((sum, {duration}) => sum + duration, 0) : null,
    };
  }

  const send = safely((beacon) => {
    const report = {};
    for (const [name, value] of Object.entries(beacon)) {
      if (value === null || value === undefined) continue;
      report[name] = name.endsWith("_ms") ? Math.max(0, Math.round(value * 1000) / 1000) : value;
    }
    const body = JSON.stringify(report);
    if (root.navigator.sendBeacon && root.navigator.sendBeacon(settings.beacon, body)) return;
    nativeFetch(settings.beacon, {method: "POST", body, keepalive: true}).catch(() => {});
  });

  // --- fetch -----------------------------------------------------------------------------------

  // Ids go to these origins alone.
  const ours = ({origin}) => origin === root.location.origin || settings.origins.includes(origin);
  const plain = (url) => url.href.split("#", 1)[0];
  const TRACEPARENT = /^00-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}$/;

  // Put `instead` before an object's own method; it gets that method, and its arguments.
  function override(object, method, instead) {
    const native = object[method];
    if (typeof native !== "function") return;
    object[method] = (...args) => instead(native.bind(object), args);
  }

  // Pass on how a promise ends, and take note of it first.
  function noting(promise, value, error) {
    const [came, failed] = [safely(value), safely(error)];
    return promise.then(
      (result) => {
        came(result);
        return result;
      },
      (reason) => {
        failed(reason);
        throw reason;
      },
    );
  }

  const begin = safely((input, init, options) => {
    const request = input instanceof root.Request ? input : {};
    const url = new URL(request.url || input, root.location.href);
    const headers = new Headers((init && init.headers) || request.headers);
    const given = TRACEPARENT.exec(headers.get("traceparent") || "");
    const answer = new Answer("fetch", plain(url), options, given && given[1]);
    answer.init = init;
    // A private language tag: of the headers that never need a preflight, wherever a redirect may
    // lead, this is the one that servers do not choose a response by.
    if (ours(url) && !headers.has("content-language")) {
      headers.set("content-language", `x-llmtrace-${answer.mark}`);
      answer.init = {...init, headers};
    }
    const signal = (init && init.signal) || request.signal;
    if (signal) {
      const aborted = safely(() => {
        if (answer.unread) answer.forget();
        else broke(answer, signal.reason, "cancelled");
      });
      signal.addEventListener("abort", aborted);
      answer.unhook = () => signal.removeEventListener("abort", aborted);
    }
    return answer;
  });

  function tracedFetch(input, init, options) {
    const answer = begin(input, init, options);
    if (!answer) return nativeFetch.call(root, input, init);
    return noting(nativeFetch.call(root, input, answer.init),
      (response) => answered(answer, response), (error) => broke(answer, error));
  }

  const asks = safely((answer) => answer.asks());

  const ENDS = {AbortError: "cancelled", TimeoutError: "timeout"};
  const broke = safely((answer, error, outcome) => {
    const name = String((error && error.name) || "").replace(/[^A-Za-z0-9]/g, "").slice(0, 64);
    answer.ends(ENDS[name] || outcome || "error", name || "Error");
  });

  // The page reads no further: all was there if the protocol's last word was.
  const left = safely((answer) => {
    answer.ends(answer.last && text(answer.last).includes("[DONE]") ? "success" : "cancelled");
  });

  const answered = safely((answer, response) => {
    answer.got();
    if (response.type.startsWith("opaque")) return answer.forget(); // there is nothing to see
    answer.status = response.status;
    answer.events = (response.headers.get("content-type") || "").startsWith("text/event-stream");
    if (response.url) answer.url = response.url;
    if (!response.ok) return answer.ends("error", `HTTP${response.status}`);
    if (!response.body) return answer.ends("success");
    answer.unread = true;
    hooked(answer, response);
  });

  // Every access to its body that goes through the response itself.
  const hooked = safely((answer, response) => {
    const {get} = Object.getOwnPropertyDescriptor(root.Response.prototype, "body");
    Object.defineProperty(response, "body", {
      configurable: true,
      get() {
        const stream = get.call(response);
        watched(answer, stream);
        return stream;
      },
    });
    for (const method of ["text", "json", "arrayBuffer", "blob", "bytes", "formData"]) {
      override(response, method, (native, args) => wholly(answer, native(...args), response));
    }
    override(response, "clone", (native, args) => {
      const copy = native(...args);
      answer.branched = true;
      hooked(answer, copy);
      return copy;
    });
  });

  // Read in one go: when it was there is known, and nothing before that.
  function wholly(answer, promise, source) {
    if (!claims(answer, source)) return promise;
    answer.whole = true;
    asks(answer);
    return noting(promise, () => {
      const at = answer.got();
      [answer.first, answer.unshown] = [at, visible() ? at : null];
      answer.ends("success");
    }, (error) => broke(answer, error));
  }

  const streams = new WeakSet();

  // Of several consumers one is timed: the one that reads first.
  function claims(answer, source) {
    answer.source = answer.source || source;
    answer.unread = false;
    return answer.source === source;
  }

  const watched = safely((answer, stream) => {
    if (!stream || streams.has(stream)) return;
    streams.add(stream);
    const reading = (native, args) => {
      const reader = native(...args);
      watchedReader(answer, stream, reader);
      return reader;
    };
    override(stream, "getReader", reading);
    override(stream, "values", reading);
    override(stream, Symbol.asyncIterator, reading);
    override(stream, "cancel", (native, args) => {
      if (!answer.branched || answer.source === stream) left(answer);
      return native(...args);
    });
    override(stream, "pipeThrough", (native, args) => {
      const readable = native(...args);
      watched(answer, readable);
      return readable;
    });
    override(stream, "pipeTo", (native, args) => wholly(answer, native(...args), stream));
    override(stream, "tee", (native, args) => {
      const branches = native(...args);
      answer.branched = true;
      branches.forEach((branch) => watched(answer, branch));
      return branches;
    });
  });

  const watchedReader = safely((answer, stream, reader) => {
    const read = (native, args) => {
      if (!claims(answer, stream)) return native(...args);
      asks(answer);
      return noting(native(...args), ({done, value}) => {
        if (done) answer.ends("success");
        else answer.piece(value, answer.got());
      }, (error) => broke(answer, error));
    };
    const leave = (native, args) => {
      if (claims(answer, stream)) left(answer);
      return native(...args);
    };
    override(reader, "read", read);
    override(reader, "next", read);
    override(reader, "cancel", leave);
    override(reader, "return", leave);
  });

  // --- EventSource -----------------------------------------------------------------------------

  // It cannot send headers: the id goes into the address.
  const beginEvents = safely((address, options) => {
    const url = new URL(address, root.location.href);
    const answer = new Answer("eventsource", plain(url), options);
    if (ours(url)) url.searchParams.set("llmtrace", answer.mark);
    answer.url = plain(url);
    return answer;
  });

  function TracedEventSource(address, init, options) {
    const answer = beginEvents(address, options);
    const source = new NativeEventSource(answer ? answer.url : address, init);
    if (answer) followed(answer, source);
    return source;
  }
  if (NativeEventSource) {
    TracedEventSource.prototype = NativeEventSource.prototype;
    Object.assign(TracedEventSource, {CONNECTING: 0, OPEN: 1, CLOSED: 2});
  }

  const followed = safely((answer, source) => {
    let done = false;
    const message = safely((event) => {
      const at = answer.got();
      answer.asks(); // events come unasked
      done = event.data === "[DONE]";
      answer.piece(done ? "" : event.data, at);
    });
    const types = new Set(["message", "open", "error"]);
    source.addEventListener("message", message);
    source.addEventListener("error", safely(() => {
      // The server closed the stream, at its end or in the middle: the page cannot know.
      const failed = answer.first === null || source.readyState === NativeEventSource.CLOSED;
      if (done) answer.ends("success");
      else if (failed) answer.ends("error", "EventSource");
      else answer.ends(null);
    }));
    override(source, "addEventListener", (native, args) => {
      if (!types.has(args[0])) {
        types.add(args[0]);
        native(args[0], message); // before the page's own
      }
      return native(...args);
    });
    override(source, "close", (native, args) => {
      // In response to an event, or as the user lost patience.
      safely(() => answer.ends(done || answer.probing ? "success" : "cancelled"))();
      return native(...args);
    });
  });

  // --- the page --------------------------------------------------------------------------------

  function configure(given) {
    for (const name of Object.keys(settings)) {
      if (given && given[name] !== undefined) settings[name] = given[name];
    }
  }

  safely(() => {
    const script = doc && doc.currentScript;
    if (script && script.src) configure({beacon: new URL("beacon", script.src).href});
    root.addEventListener("pagehide", safely(() => {
      for (const answer of [...open]) {
        if (answer.stop) answer.finish();
        else if (answer.unread) answer.forget();
        else answer.ends("cancelled", "pagehide", true);
      }
    }));
    doc.addEventListener("visibilitychange", safely(() => {
      for (const answer of [...open]) answer.shown(visible());
    }));
  })();

  root.llmtrace = {fetch: tracedFetch, EventSource: TracedEventSource, configure};
})(globalThis);
