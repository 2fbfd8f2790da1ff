/* SPDX-License-Identifier: Apache-2.0 */
/* trek-top on a terminal, through ncurses: runs above, and the details of the selected one below. */
#include "tools/top.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef TREK_TOP_NCURSES
#include <curses.h>
#include <poll.h>
#include <unistd.h>

typedef struct view {
    top *t;
    char chosen[4096];       /* the path of the selected run, so that it stays selected however runs are sorted */
    int first, scroll;       /* the first run shown, and the number of detail lines scrolled past */
    bool alone, help, colours;
} view;

static const char *const help_lines[] = {
    "q        ends",          "up, k    the run above",        "down, j  the run below",
        "Enter    only the chosen run, or all again",
    "PgDn, PgUp  the next page, the page before", "s        sorts by the next of: newest, name, status, loss",
    "?        this page" };

static int chosen_of(view *v)
{
    for (int k = 0; k < v->t->n; k++)
        if (strcmp(v->t->runs[k].path, v->chosen) == 0)
            return k;
    return 0;
}

static void choose(view *v, int k)
{
    if (k < 0 || k >= v->t->n)
        return;
    strncpy(v->chosen, v->t->runs[k].path, sizeof v->chosen - 1);
    v->scroll = 0;
}

static attr_t attributes_of(const view *v, top_style style)
{
    static const attr_t plain[TOP_STYLES] = { A_NORMAL, A_BOLD, A_NORMAL, A_BOLD, A_BOLD, A_DIM };
    attr_t colour = v->colours && style >= TOP_GOOD && style <= TOP_BAD ? (attr_t)COLOR_PAIR(style) : 0;
    return plain[style] | colour;
}

static void put(const view *v, int row, const char *text, size_t bytes, attr_t attributes)
{
    int width = getmaxx(stdscr);
    move(row, 0);
    attrset(attributes);
    addnstr(text, (int)trek_terminal_fit(&v->t->charset, text, bytes, width));
    if (attributes & A_REVERSE)
        for (int x = getcurx(stdscr); getcury(stdscr) == row && x < width - 1; x++)
            addch(' ');
    attrset(A_NORMAL);
}

/* Writes the lines from number `from` on into rows [row, end), with `marked` (-1: none) in reverse. */
static void put_lines(const view *v, const top_lines *lines, int from, int row, int end, int marked)
{
    const char *at = lines->text.data;
    for (int k = 0; at && k < lines->n && row < end; k++) {
        const char *stop = strchr(at, '\n');
        if (!stop)
            return;
        if (k >= from)
            put(v, row++, at, (size_t)(stop - at), attributes_of(v, lines->styles[k]) | (k == marked ? A_REVERSE : 0));
        at = stop + 1;
    }
}

static void put_title(const view *v)
{
    char text[160], clock[16] = "";
    time_t now = time(NULL);
    struct tm local;
    int running = 0;
    if (localtime_r(&now, &local))
        strftime(clock, sizeof clock, "%H:%M:%S", &local);
    for (int k = 0; k < v->t->n; k++)
        running += trek_run_reader_state(v->t->runs[k].reader)->status == TREK_RUN_RUNNING;
    snprintf(text, sizeof text, "trek-top  %d run%s, %d running  by %s  %s  ? help", v->t->n, v->t->n == 1 ? "" : "s", running,
             top_order_text(v->t->order), clock);
    put(v, 0, text, strlen(text), A_REVERSE);
}

/* Writes titles and runs. Returns the next row. */
static int put_runs(view *v, int row, int height)
{
    top_lines titles = { 0 }, lines = { 0 };
    int chosen = chosen_of(v), most = (height - row) / 2, room = v->t->n < most ? v->t->n : most;
    if (room < 1)
        room = 1;
    v->first = chosen < v->first ? chosen : chosen >= v->first + room ? chosen - room + 1 : v->first;
    if (v->first + room > v->t->n)
        v->first = v->t->n > room ? v->t->n - room : 0;
    top_add_titles(&titles, v->t);
    for (int k = 0; k < v->t->n; k++)
        top_add_run(&lines, v->t, &v->t->runs[k]);
    put_lines(v, &titles, 0, row, height, -1);
    put_lines(v, &lines, v->first, row + 1, row + 1 + room < height ? row + 1 + room : height, chosen);
    top_lines_clear(&titles);
    top_lines_clear(&lines);
    return row + 1 + room;
}

static void draw(view *v)
{
    int height = getmaxy(stdscr), row = 1;
    erase();
    put_title(v);
    if (v->help) {
        for (size_t k = 0; k < sizeof help_lines / sizeof *help_lines && (int)k + 2 < height; k++)
            put(v, (int)k + 2, help_lines[k], strlen(help_lines[k]), A_NORMAL);
    } else if (v->t->n == 0) {
        static const char none[] = "no runs: trek-top FOLDER, or TREK_LOG_DIR";
        put(v, height > 2 ? 2 : height - 1, none, strlen(none), A_NORMAL);
    } else {
        top_lines lines = { 0 };
        row = v->alone ? row : put_runs(v, row, height) + 1;
        top_add_details(&lines, v->t, &v->t->runs[chosen_of(v)]);
        int most = lines.n - (height - row);
        v->scroll = v->scroll > most ? most : v->scroll;
        v->scroll = v->scroll < 0 ? 0 : v->scroll;
        put_lines(v, &lines, v->scroll, row, height, -1);
        top_lines_clear(&lines);
    }
    refresh();
}

/* Returns false if the program should end. */
static bool take_key(view *v, int key)
{
    int page = getmaxy(stdscr) / 2;
    switch (key) {
    case 'q':
        return false;
    case KEY_UP:
    case 'k':
        choose(v, chosen_of(v) - 1);
        break;
    case KEY_DOWN:
    case 'j':
        choose(v, chosen_of(v) + 1);
        break;
    case '\n':
    case '\r':
    case KEY_ENTER:
        v->alone = !v->alone;
        break;
    case KEY_NPAGE:
    case ' ':
        v->scroll += page;
        break;
    case KEY_PPAGE:
        v->scroll -= page;
        break;
    case 's':
        v->t->order = (v->t->order + 1) % TOP_ORDERS;
        top_poll(v->t);
        break;
    case '?':
        v->help = !v->help;
        break;
    default:
        break;
    }
    return true;
}

static void begin_screen(view *v)
{
    cbreak();
    noecho();
    keypad(stdscr, TRUE);
    curs_set(0);
    v->colours = trek_terminal_colours(true) && has_colors();
    if (!v->colours)
        return;
    start_color();
    use_default_colors();
    init_pair(TOP_GOOD, COLOR_GREEN, -1);
    init_pair(TOP_WARNING, COLOR_YELLOW, -1);
    init_pair(TOP_BAD, COLOR_RED, -1);
}

static bool terminal_is_there(void)
{
    struct pollfd input = { .fd = STDIN_FILENO, .events = POLLIN };
    return poll(&input, 1, 0) <= 0 || !(input.revents & (POLLHUP | POLLERR | POLLNVAL));
}

int top_screen(top *t, double interval)
{
    view *v = calloc(1, sizeof *v);
    SCREEN *screen = v ? newterm(NULL, stdout, stdin) : NULL;
    if (!screen) {
        free(v);
        fprintf(stderr, "trek-top: this terminal (TERM) is not known; use --once\n");
        return 1;
    }
    char why[256];
    v->t = t;
    choose(v, 0);
    begin_screen(v);
    timeout((int)(interval * 1000));
    bool goes_on = true;
    while (goes_on) {
        draw(v);
        int key = getch();
        if (key == ERR)
            goes_on = terminal_is_there() && (top_look(t, why), true); /* a folder that has gone has no runs */
        else
            goes_on = take_key(v, key);
    }
    endwin();
    delscreen(screen);
    free(v);
    return 0;
}
#else

int top_screen(top *t, double interval)
{
    (void)t;
    (void)interval;
    fprintf(stderr, "trek-top: it was built without ncurses (libncurses-dev); only --once and --json work\n");
    return 1;
}
#endif
