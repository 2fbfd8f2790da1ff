/* SPDX-License-Identifier: Apache-2.0 */
/* What a stream shows: whether it may be rewritten and coloured, how wide it is, and how wide a text is in it. Internal; of
 * libc alone, for the tools are compiled with it, too. */
#ifndef TREK_MONITOR_TERMINAL_H
#define TREK_MONITOR_TERMINAL_H

#include <locale.h>
#include <stdbool.h>
#include <stddef.h>

/* How texts are to be seen: that of LC_ALL, LC_CTYPE, LANG, whatever setlocale the program has called. */
typedef struct trek_charset {
    bool utf8;
    locale_t locale;   /* (locale_t)0: of no characters but ASCII */
} trek_charset;

trek_charset trek_charset_new(void);
void trek_charset_free(trek_charset *charset);

/* A terminal on which lines can be rewritten: not TERM=dumb. */
bool trek_terminal_rewrites(int fd);
/* NO_COLOR (not empty) forbids; CLICOLOR_FORCE or FORCE_COLOR (neither empty nor 0) demand; else where it rewrites. */
bool trek_terminal_colours(bool rewrites);
/* Columns, now; COLUMNS where the system does not tell; else 80. */
int trek_terminal_width(int fd);

/* The columns that a text takes; sequences ESC [ ... m take none. */
int trek_terminal_columns(const trek_charset *charset, const char *text, size_t bytes);
/* How many bytes of it fit into so many columns, whole characters and sequences only. */
size_t trek_terminal_fit(const trek_charset *charset, const char *text, size_t bytes, int columns);

#endif
