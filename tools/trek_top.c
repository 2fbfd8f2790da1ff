/* SPDX-License-Identifier: Apache-2.0 */
/* trek-top: the running and recent jobs of this machine, on a terminal, as text, or as JSON. It only reads. */
#include <errno.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "monitor/page.h"
#include "tools/top.h"

enum { USAGE = 2 };

static const char help[] =
    "usage: trek-top [options] [folder ...]\n"
    "\n"
    "Shows watched runs: progress, loss, speed, ranks, memory, messages. A folder contains runs, as TREK_LOG_DIR does, or is\n"
    "the folder of one run. Without a folder: the runs of TREK_LOG_DIR, and those of running programs of this machine.\n"
    "\n"
    "      --once               prints the runs as text and ends; this is the default if there is no terminal\n"
    "      --json               prints the runs as JSON and ends\n"
    "      --serve[=PORT]       serves a page with the runs of the folder to browsers of this machine, until a signal ends\n"
    "                           it. Default port 6006, or a free one if that is in use; 0: any free port\n"
    "      --token              with --serve: puts a secret into the address, so that other users cannot open the page\n"
    "  -i, --interval SECONDS   time between updates; default 1\n"
    "  -s, --sort ORDER         newest, name, status or loss; default newest\n"
    "  -h, --help               prints this text\n"
    "\n"
    "Keys: up and down choose a run, Enter shows only that run, PgUp and PgDn scroll, s changes the order, ? shows help,\n"
    "q quits.\n"
    "Exit status: 0; 1 if a folder cannot be read; 2 for a wrong call.\n";

typedef struct options {
    bool once, json, serve, token;
    int port;               /* -1 if not given */
    double interval;
    top_order order;
} options;

static int wrong_call(const char *what, const char *which)
{
    fprintf(stderr, "trek-top: %s%s%s\ntrek-top --help shows how to call it\n", what, which ? ": " : "", which ? which : "");
    return USAGE;
}

static bool read_order(const char *text, top_order *order)
{
    for (int k = 0; text && k < TOP_ORDERS; k++)
        if (strcmp(text, top_order_text((top_order)k)) == 0) {
            *order = (top_order)k;
            return true;
        }
    return false;
}

static bool read_seconds(const char *text, double *seconds)
{
    char *end;
    *seconds = text ? strtod(text, &end) : 0;
    return text && *text && *end == '\0' && *seconds >= 0.05 && *seconds <= 3600;
}

static bool read_port(const char *text, int *port)
{
    char *end;
    long value = strtol(text, &end, 10);
    *port = (int)value;
    return *text && *end == '\0' && value >= 0 && value <= 65535;
}

static bool is(const char *argument, const char *brief, const char *name)
{
    return strcmp(argument, brief) == 0 || strcmp(argument, name) == 0;
}

/* Returns 0, the status to end with, or -1 if help was requested. *next is the first folder. */
static int read_options(int argc, char **argv, options *o, int *next)
{
    int k = 1;
    for (; k < argc && argv[k][0] == '-' && argv[k][1]; k++) {
        if (strcmp(argv[k], "--") == 0) {
            k++;
            break;
        }
        if (is(argv[k], "-h", "--help"))
            return -1;
        if (strcmp(argv[k], "--once") == 0) {
            o->once = true;
        } else if (strcmp(argv[k], "--json") == 0) {
            o->json = true;
        } else if (strcmp(argv[k], "--serve") == 0 || strncmp(argv[k], "--serve=", 8) == 0) {
            o->serve = true;
            if (argv[k][7] && !read_port(argv[k] + 8, &o->port))
                return wrong_call("--serve takes a port, 0 to 65535", NULL);
        } else if (strcmp(argv[k], "--token") == 0) {
            o->token = true;
        } else if (is(argv[k], "-i", "--interval")) {
            if (!read_seconds(++k < argc ? argv[k] : NULL, &o->interval))
                return wrong_call("--interval takes seconds, 0.05 to 3600", NULL);
        } else if (is(argv[k], "-s", "--sort")) {
            if (!read_order(++k < argc ? argv[k] : NULL, &o->order))
                return wrong_call("--sort takes newest, name, status or loss", NULL);
        } else {
            return wrong_call("unknown option", argv[k]);
        }
    }
    *next = k;
    return 0;
}

/* Serves until a signal ends it. */
static int serve(const char *folder, int port, bool token)
{
    sigset_t ends;
    int ended;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGHUP);
    sigprocmask(SIG_BLOCK, &ends, NULL); /* also for the server's threads */
    trek_page_opts opts = { .folder = folder, .port = port == 0 ? TREK_OFF : port > 0 ? port : 0,
                            .token = token ? "" : NULL };
    trek_page *page = trek_page_serve(&opts);
    if (!page && port < 0 && trek_error_status() == TREK_ERR_IO) { /* the usual port is in use */
        trek_error_clear();
        opts.port = TREK_OFF;
        page = trek_page_serve(&opts);
    }
    if (!page) {
        fprintf(stderr, "trek-top: %s\n", trek_error());
        return 1;
    }
    printf("trek-top: %s shows %s\n", trek_page_address(page), folder);
    fflush(stdout);
    sigwait(&ends, &ended);
    trek_page_free(&page);
    return 0;
}

static int print(const top *t, bool json)
{
    top_lines lines = { 0 };
    if (json) {
        top_add_json(&lines.text, t);
    } else {
        top_add_titles(&lines, t);
        for (int k = 0; k < t->n; k++)
            top_add_run(&lines, t, &t->runs[k]);
        for (int k = 0; k < t->n; k++) {
            trek_text_add(&lines.text, "\n");
            top_add_details(&lines, t, &t->runs[k]);
        }
    }
    bool well = !lines.text.failed && fputs(lines.text.data ? lines.text.data : "", stdout) >= 0 && fflush(stdout) == 0;
    top_lines_clear(&lines);
    return well ? 0 : 1;
}

int main(int argc, char **argv)
{
    options o = { .interval = 1, .port = -1 };
    char why[256];
    int next = argc, wrong = read_options(argc, argv, &o, &next);
    if (wrong == -1)
        return fputs(help, stdout) < 0;
    if (wrong)
        return wrong;
    const char *folder = next < argc ? argv[next] : getenv("TREK_LOG_DIR");
    if (o.serve && (!folder || argc - next > 1))
        return wrong_call("--serve takes one folder", NULL);
    if (o.serve)
        return serve(folder, o.port, o.token);
    setlocale(LC_CTYPE, "");
    top t = { .folders = argv + next, .charset = trek_charset_new(), .order = o.order };
    bool well = top_look(&t, why);
    int status = 1;
    if (!well)
        fprintf(stderr, "trek-top: %s\n", why);
    else
        status = o.once || o.json || !isatty(STDIN_FILENO) ||
        !isatty(STDOUT_FILENO) ? print(&t, o.json) : top_screen(&t, o.interval);
    top_clear(&t);
    trek_charset_free(&t.charset);
    return status;
}
