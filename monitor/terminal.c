/* SPDX-License-Identifier: Apache-2.0 */
#include "monitor/terminal.h"

#include <langinfo.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

/* The first variable that is set decides, as in setlocale. */
static const char *wanted_locale(void)
{
    static const char *const names[] = { "LC_ALL", "LC_CTYPE", "LANG" };
    for (int k = 0; k < 3; k++) {
        const char *value = getenv(names[k]);
        if (value && *value)
            return value;
    }
    return "C";
}

trek_charset trek_charset_new(void)
{
    const char *name = wanted_locale();
    trek_charset charset = { .locale = newlocale(LC_CTYPE_MASK, name, (locale_t)0) };
    if (charset.locale) {
        charset.utf8 = strcmp(nl_langinfo_l(CODESET, charset.locale), "UTF-8") == 0;
    } else { /* not installed here: the name determines the charset, and any locale of that charset knows the widths */
        const char *set = strchr(name, '.');
        charset.utf8 = set && (strncasecmp(set + 1, "utf-8", 5) == 0 || strncasecmp(set + 1, "utf8", 4) == 0);
        charset.locale = charset.utf8 ? newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0) : (locale_t)0;
    }
    return charset;
}

void trek_charset_free(trek_charset *charset)
{
    if (charset->locale)
        freelocale(charset->locale);
    charset->locale = (locale_t)0;
}

bool trek_terminal_rewrites(int fd)
{
    const char *term = getenv("TERM");
    return fd >= 0 && isatty(fd) && !(term && strcmp(term, "dumb") == 0);
}

static bool demands(const char *name)
{
    const char *value = getenv(name);
    return value && *value && strcmp(value, "0") != 0;
}

bool trek_terminal_colours(bool rewrites)
{
    const char *none = getenv("NO_COLOR");
    if (none && *none)
        return false;
    return rewrites || demands("CLICOLOR_FORCE") || demands("FORCE_COLOR");
}

int trek_terminal_width(int fd)
{
    struct winsize size;
    if (fd >= 0 && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return size.ws_col;
    const char *columns = getenv("COLUMNS");
    long told = columns ? strtol(columns, NULL, 10) : 0;
    return told > 0 && told < 10000 ? (int)told : 80;
}

/* Returns the length of ESC [ ... m at the text's beginning, or 0 if there is none. */
static size_t sequence(const char *text, size_t bytes)
{
    if (bytes < 3 || text[0] != '\x1b' || text[1] != '[')
        return 0;
    size_t k = 2;
    while (k < bytes && strchr("0123456789;", text[k]))
        k++;
    return k < bytes && text[k] == 'm' ? k + 1 : 0;
}

/* Returns the bytes of one character or sequence, at least 1, and its columns. An invalid character is shown as one
 * column. */
static size_t next_character(const char *text, size_t bytes, int *columns)
{
    size_t length = sequence(text, bytes);
    *columns = 0;
    if (length)
        return length;
    *columns = 1;
    wchar_t wide;
    mbstate_t state = { 0 };
    length = mbrtowc(&wide, text, bytes, &state);
    if (length == 0 || length > bytes)
        return 1;
    int width = wcwidth(wide);
    *columns = width >= 0 ? width : 1;
    return length;
}

static size_t walk(const trek_charset *charset, const char *text, size_t bytes, int most, int *columns)
{
    locale_t before = charset->locale ? uselocale(charset->locale) : (locale_t)0;
    size_t at = 0;
    *columns = 0;
    while (at < bytes) {
        int width;
        size_t length = next_character(text + at, bytes - at, &width);
        if (*columns > most - width)
            break;
        *columns += width;
        at += length;
    }
    if (charset->locale)
        uselocale(before);
    return at;
}

int trek_terminal_columns(const trek_charset *charset, const char *text, size_t bytes)
{
    int columns;
    walk(charset, text, bytes, 1 << 30, &columns);
    return columns;
}

size_t trek_terminal_fit(const trek_charset *charset, const char *text, size_t bytes, int columns)
{
    int taken;
    return walk(charset, text, bytes, columns, &taken);
}
