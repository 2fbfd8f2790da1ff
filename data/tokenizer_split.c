/* SPDX-License-Identifier: Apache-2.0 */
/* Characters and words. */
#include <pthread.h>
#include <string.h>

#include "data/tokenizer_internal.h"

/* What \s means in Unicode (White_Space). */
static const trek_code_range spaces[] = {
    { 0x9, 0xD }, { 0x20, 0x20 }, { 0x85, 0x85 }, { 0xA0, 0xA0 }, { 0x1680, 0x1680 }, { 0x2000, 0x200A }, { 0x2028, 0x2029 },
    { 0x202F, 0x202F }, { 0x205F, 0x205F }, { 0x3000, 0x3000 },
};

static uint8_t table[TREK_CHAR_CLASSES];

static void fill(const trek_code_range *ranges, int n, uint8_t value)
{
    for (int k = 0; k < n; k++)
        if (ranges[k].last < TREK_CHAR_CLASSES)
            memset(table + ranges[k].first, value, ranges[k].last - ranges[k].first + 1);
}

static void fill_all(void)
{
    fill(trek_unicode_letters, trek_unicode_letters_count, TREK_CHAR_LETTER);
    fill(trek_unicode_numbers, trek_unicode_numbers_count, TREK_CHAR_NUMBER);
    fill(spaces, (int)(sizeof spaces / sizeof *spaces), TREK_CHAR_SPACE);
}

const uint8_t *trek_char_classes(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_all);
    return table;
}

/* Returns the class of the character at p, and its length in bytes. */
static int wide_class(const uint8_t *classes, const unsigned char *p, const unsigned char *end, int *length)
{
    static const uint32_t least[5] = { 0, 0, 0x80, 0x800, 0x10000 };
    int count = *p >= 0xF0 ? 4 : *p >= 0xE0 ? 3 : 2;
    uint32_t code = *p & (0xFFu >> (count + 1));
    *length = 1;
    if (*p < 0xC2 || *p > 0xF4 || end - p < count)
        return TREK_CHAR_OTHER;
    for (int k = 1; k < count; k++) {
        if ((p[k] & 0xC0) != 0x80)
            return TREK_CHAR_OTHER;
        code = code << 6 | (p[k] & 0x3F);
    }
    if (code < least[count] || (code >= 0xD800 && code < 0xE000) || code > 0x10FFFF)
        return TREK_CHAR_OTHER;
    *length = count;
    return code < TREK_CHAR_CLASSES ? classes[code] : TREK_CHAR_OTHER;
}

static inline int class_at(const uint8_t *classes, const unsigned char *p, const unsigned char *end, int *length)
{
    *length = 1;
    return *p < 0x80 ? classes[*p] : wide_class(classes, p, end, length);
}

/* Returns the end of a run of characters of one class. */
static const unsigned char *run_end(const uint8_t *classes, const unsigned char *p, const unsigned char *end, int kind)
{
    int length;
    while (p < end && class_at(classes, p, end, &length) == kind)
        p += length;
    return p;
}

/* Returns the length of 's 't 're 've 'm 'll 'd at p, or 0. */
static int contraction(const unsigned char *p, const unsigned char *end)
{
    static const char *const two[] = { "re", "ve", "ll" };
    if (*p != '\'' || end - p < 2)
        return 0;
    if (p[1] == 's' || p[1] == 't' || p[1] == 'm' || p[1] == 'd')
        return 2;
    for (int k = 0; k < 3 && end - p > 2; k++)
        if (p[1] == two[k][0] && p[2] == two[k][1])
            return 3;
    return 0;
}

/* White space is one word, without its last character if something follows. */
static const unsigned char *space_end(const uint8_t *classes, const unsigned char *p, const unsigned char *end)
{
    const unsigned char *at = p, *last = p;
    int length;
    while (at < end && class_at(classes, at, end, &length) == TREK_CHAR_SPACE) {
        last = at;
        at += length;
    }
    return at < end && last > p ? last : at;
}

const unsigned char *trek_word_end(const uint8_t *classes, const unsigned char *p, const unsigned char *end)
{
    int length, kind = class_at(classes, p, end, &length), short_form = contraction(p, end);
    if (short_form)
        return p + short_form;
    if (*p == ' ' && p + 1 < end) {
        int next = class_at(classes, p + 1, end, &length);
        return next != TREK_CHAR_SPACE ? run_end(classes, p + 1, end, next) : space_end(classes, p, end);
    }
    return kind == TREK_CHAR_SPACE ? space_end(classes, p, end) : run_end(classes, p, end, kind);
}
