/* SPDX-License-Identifier: Apache-2.0 */
/* trek-top: the observed runs, and their description in lines of text, which a screen or a file shows. */
#ifndef TREK_TOOLS_TOP_H
#define TREK_TOOLS_TOP_H

#include "monitor/viewer/run_reader.h"
#include "monitor/terminal.h"
#include "nn/text.h"

typedef struct top_run {
    char *name, *path;
    trek_run_reader *reader;
    bool listed;            /* found when the folders were last listed */
} top_run;

typedef enum top_order { TOP_NEWEST, TOP_BY_NAME, TOP_BY_STATUS, TOP_BY_LOSS, TOP_ORDERS } top_order;

typedef struct top {
    char **folders;         /* NULL-terminated; if empty: TREK_LOG_DIR, and what runs on this machine */
    trek_charset charset;
    top_order order;
    top_run *runs;
    int n, capacity;
} top;

/* Looks for runs, reads what is new and sorts them. Returns false if a named folder cannot be read, with the reason
 * in `why` (at least 256 bytes). */
bool top_look(top *t, char *why);
/* Reads what is new from the known runs. */
void top_poll(top *t);
void top_clear(top *t);

typedef enum top_style { TOP_PLAIN, TOP_TITLE, TOP_GOOD, TOP_WARNING, TOP_BAD, TOP_DIM, TOP_STYLES } top_style;

/* Lines of text, each with its style. Without memory, lines are left out. */
typedef struct top_lines {
    trek_text text;         /* each line ends in '\n' */
    unsigned char *styles;
    int n, capacity;
} top_lines;

void top_lines_clear(top_lines *lines);
/* Adds the titles of top_add_run's columns. */
void top_add_titles(top_lines *lines, const top *t);
/* Adds one line. */
void top_add_run(top_lines *lines, const top *t, const top_run *run);
/* Adds everything known of a run. */
void top_add_details(top_lines *lines, const top *t, const top_run *run);
/* Adds all runs as an array. */
void top_add_json(trek_text *text, const top *t);

/* Returns a curve's latest value, or NaN if there is none. */
double top_latest(const top_run *run, const char *name);
const char *top_order_text(top_order order);
top_style top_style_of(trek_run_status status);

/* Shows the runs on a terminal until q is pressed. Returns the exit status. */
int top_screen(top *t, double interval);

#endif
