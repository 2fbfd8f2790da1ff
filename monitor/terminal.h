/* SPDX-License-Identifier: Apache-2.0 */
/* The properties of an output stream: whether it may be rewritten and coloured, how wide it is, and how wide a text
 * is on it. It uses only libc, because the tools are compiled with it as well. */
#ifndef TREK_MONITOR_TERMINAL_H
#define TREK_MONITOR_TERMINAL_H

#include <locale.h>
#include <stdbool.h>
#include <stddef.h>

/* How texts are displayed, according to LC_ALL, LC_CTYPE and LANG, regardless of the program's own setlocale calls. */
typedef struct trek_charset {
    bool utf8;
    locale_t locale;   /* (locale_t)0 if only ASCII can be shown */
} trek_charset;

trek_charset trek_charset_new(void);
void trek_charset_free(trek_charset *charset);

/* Returns whether lines can be rewritten: it is a terminal other than TERM=dumb. */
bool trek_terminal_rewrites(int fd);
/* NO_COLOR (not empty) forbids colours; CLICOLOR_FORCE or FORCE_COLOR (neither empty nor 0) force them; otherwise
 * they are used where lines can be rewritten. */
bool trek_terminal_colours(bool rewrites);
/* Returns the current number of columns, or COLUMNS if the system does not know it, or 80. */
int trek_terminal_width(int fd);

/* Returns the columns that a text takes; sequences ESC [ ... m take none. */
int trek_terminal_columns(const trek_charset *charset, const char *text, size_t bytes);
/* Returns how many bytes fit into this many columns, counting only whole characters and sequences. */
size_t trek_terminal_fit(const trek_charset *charset, const char *text, size_t bytes, int columns);

#endif
