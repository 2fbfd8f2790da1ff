/* SPDX-License-Identifier: Apache-2.0 */
/* trek-top: the runs that are looked at, and what is said of them in lines of text, which a screen or a file shows. */
#ifndef TREK_TOOLS_TOP_H
#define TREK_TOOLS_TOP_H

#include "monitor/run_reader.h"
#include "monitor/terminal.h"
#include "nn/text.h"

typedef struct top_run {
    char *name, *path;
    trek_run_reader *reader;
    bool listed;            /* in the last look at the folders */
} top_run;

typedef enum top_order { TOP_NEWEST, TOP_BY_NAME, TOP_BY_STATUS, TOP_BY_LOSS, TOP_ORDERS } top_order;

typedef struct top {
    char **folders;         /* NULL-terminated; none: TREK_LOG_DIR, and what runs on this machine */
    trek_charset charset;
    top_order order;
    top_run *runs;
    int n, capacity;
} top;

/* Looks for runs, reads what is new of them, and sorts them. false: a folder that was named cannot be read; `why` (at least 256
 * bytes) says so. */
bool top_look(top *t, char *why);
/* Reads what is new of those that are known. */
void top_poll(top *t);
void top_clear(top *t);

typedef enum top_style { TOP_PLAIN, TOP_TITLE, TOP_GOOD, TOP_WARNING, TOP_BAD, TOP_DIM, TOP_STYLES } top_style;

/* Lines of text, each with its style; those without memory are left out. */
typedef struct top_lines {
    trek_text text;         /* each ends in '\n' */
    unsigned char *styles;
    int n, capacity;
} top_lines;

void top_lines_clear(top_lines *lines);
/* The titles of the columns of top_add_run. */
void top_add_titles(top_lines *lines, const top *t);
/* One line. */
void top_add_run(top_lines *lines, const top *t, const top_run *run);
/* All that is known of it. */
void top_add_details(top_lines *lines, const top *t, const top_run *run);
/* All runs, an array. */
void top_add_json(trek_text *text, const top *t);

/* The latest of a curve; NaN: there is none. */
double top_latest(const top_run *run, const char *name);
const char *top_order_text(top_order order);
top_style top_style_of(trek_run_status status);

/* The view on a terminal, until q. Returns the exit status. */
int top_screen(top *t, double interval);

#endif
