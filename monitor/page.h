/* SPDX-License-Identifier: Apache-2.0 */
/* The live page: a small web server that shows watched runs in a browser, while they continue and after they have ended. It
 * runs in the program that trains or in another one. It reads the files of runs (monitor/README.md). It writes only an empty
 * file want-histograms, when somebody asks for histograms on the page. The browser does the rest, also offline.
 *
 *     /                                        the page (with style.css and script.js)
 *     /api/runs                                the runs of the folder, JSON
 *     /api/runs/NAME/processes                 the files of a run, JSON
 *     /api/runs/NAME/process-K.jsonl?from=N    whole lines of a file, from byte N on; the header X-Trek-Next gives the next N
 *     /api/runs/NAME/metrics                   the current state of a run, OpenMetrics text for Prometheus (monitor/export.h);
 *                                              503 while it is being read, some megabytes for each request
 *     /metrics                                 these metrics of the only run, if one run is shown
 *     /api/runs/NAME/want-histograms           POST
 *
 * It needs the plug-in libtrek-monitor (Debian: libtrek0.2-monitor) and libmicrohttpd (libmicrohttpd12), which are opened when
 * the first page is served. Its only thread has a lower priority than those that train. */
#ifndef TREK_MONITOR_PAGE_H
#define TREK_MONITOR_PAGE_H

#include "tensor/status.h"

TREK_BEGIN

/* The default port of a page. */
#define TREK_PAGE_PORT 6006

/* A page that is being served. */
typedef struct trek_page trek_page;

/* Options of a page. */
typedef struct trek_page_opts {
    const char *folder;  /* a folder of runs, or one run, which is then shown alone; it must exist; required */
    int port;            /* the port; TREK_OFF: any free port; default TREK_PAGE_PORT */
    const char *address; /* a number or name of this machine; default "127.0.0.1": only programs of this machine reach it */
    /* The first part of the page's path, without which nobody can read it: 16 to 128 of [A-Za-z0-9_-]. "": 128 random bits.
     * Default: no token for a loopback address, otherwise random bits. */
    const char *token;
} trek_page_opts;

/* Serves a page until it is freed by trek_page_free, and returns it. If the address is loopback, requests that name another
 * host are refused, so that no web page can read it through a name that leads to this machine.
 * Errors: ARGUMENT. IO if the folder does not exist or the port is in use. UNSUPPORTED without the plug-in or libmicrohttpd.
 * MEMORY. NULL is returned. */
TREK_API trek_page *trek_page_serve(const trek_page_opts *opts);
/* Serves the page that the environment variable TREK_MONITOR asks for: PORT, ADDRESS:PORT or [ADDRESS]:PORT, where port 0 is
 * any free port. It prints the address on standard error. Returns NULL without an error if the variable is not set or empty.
 * Errors: ARGUMENT if the variable has another form. Otherwise as trek_page_serve. */
TREK_API trek_page *trek_page_from_environment(const char *folder);
/* Returns the address for a browser, with the token: "http://127.0.0.1:6006/". It is borrowed from the page. Returns "" if
 * `page` is NULL. */
TREK_API const char *trek_page_address(const trek_page *page);
/* Ends the server, also while a browser reads, and sets *page to NULL. NULL is allowed. */
TREK_API void trek_page_free(trek_page **page);

TREK_END

#endif
