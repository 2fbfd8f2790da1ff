/* SPDX-License-Identifier: Apache-2.0 */
/* The live page: a small server, in the program that trains or in another one, that shows watched runs in a browser while they
 * go on and after they have ended. It reads the files of runs (monitor/README.md) and writes nothing but an empty file
 * want-histograms when somebody asks for histograms on the page; the browser does the rest, offline, too.
 *
 *   /                                        the page (style.css and script.js beside it)
 *   /api/runs                                the runs of the folder, JSON
 *   /api/runs/NAME/processes                 the files of a run, JSON
 *   /api/runs/NAME/process-K.jsonl?from=N    whole lines of one, from byte N on; the header X-Trek-Next says where to go on
 *   /api/runs/NAME/metrics                   the run as it stands, OpenMetrics text for Prometheus (monitor/export.h); 503 while
 *                                            it is being read, some megabytes a request
 *   /metrics                                 the same of the one run that is shown, where it is one
 *   /api/runs/NAME/want-histograms           POST
 *
 * It needs libmicrohttpd (Debian: libmicrohttpd12), which is opened when the first page is served. Its one thread gives way to
 * those that train. */
#ifndef TREK_MONITOR_PAGE_H
#define TREK_MONITOR_PAGE_H

#include "tensor/status.h"

TREK_BEGIN

/* Where a page is served unless something else is asked for. */
#define TREK_PAGE_PORT 6006

typedef struct trek_page trek_page;

typedef struct trek_page_opts {
    const char *folder;   /* of runs, or of one run: the others beside it are not shown. It must be there */
    int port;             /* default TREK_PAGE_PORT; TREK_OFF: any that is free */
    const char *address;  /* a number or a name of this machine; default "127.0.0.1": only programs of this machine reach it */
    const char *token;    /* 16 to 128 of [A-Za-z0-9_-]: only who knows it may look; it is the first part of the page's path.
                           * "": 128 random bits. Default: none on loopback, else these */
} trek_page_opts;

/* Serves until it is freed. Where the address is loopback, requests that name another host are refused: no page of the web may
 * read it by a name that leads here. NULL: ARGUMENT; IO (no such folder; the port is taken); UNSUPPORTED without libmicrohttpd;
 * MEMORY. */
TREK_API trek_page *trek_page_serve(const trek_page_opts *opts);
/* The page that the environment's TREK_MONITOR asks for: PORT, ADDRESS:PORT or [ADDRESS]:PORT, 0: any port that is free. Says on
 * standard error where it is. NULL without an error: it is not set, or empty; ARGUMENT: it is something else; and as above. */
TREK_API trek_page *trek_page_from_environment(const char *folder);
/* Where a browser finds it, with its token: "http://127.0.0.1:6006/". Owned by the page; "" for NULL. */
TREK_API const char *trek_page_address(const trek_page *page);
/* Ends it, even while a browser reads. NULL: nothing. */
TREK_API void trek_page_free(trek_page **page);

TREK_END

#endif
