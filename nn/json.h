/* SPDX-License-Identifier: Apache-2.0 */
/* Just enough JSON to read headers, parsed strictly, and to write strings. Every function that reads returns false after an
 * error, which is then set (FORMAT or MEMORY) and names the position. */
#ifndef TREK_NN_JSON_H
#define TREK_NN_JSON_H

#include "nn/text.h"

typedef struct trek_json {
    const char *start, *at, *end;
    const char *path;         /* for messages */
} trek_json;

bool trek_json_fail(const trek_json *json, const char *what);
/* Returns the next character that is not white space without consuming it, or 0 at the end. */
char trek_json_peek(trek_json *json);
/* Consumes exactly this character. */
bool trek_json_expect(trek_json *json, char wanted);
/* Inside an object or array, after an item: consumes "," (and sets *more) or the closing character. */
bool trek_json_next(trek_json *json, char close, bool *more);
/* After "{" or "[": tells whether there is a first item, and consumes the closing character if there is none. */
bool trek_json_first(trek_json *json, char close, bool *more);
/* Reads a string into a new NUL-terminated one (free with trek_free). Escaped NULs are refused. */
bool trek_json_string_new(trek_json *json, char **string);
/* Reads "key": including its colon. */
bool trek_json_key_new(trek_json *json, char **key);
/* Reads a non-negative integer without sign, fraction, exponent or leading zeros, at most INT64_MAX. */
bool trek_json_integer(trek_json *json, int64_t *value);
/* Reads any number, independent of the locale. *whole says that it was written as an integer, which is then in
 * *integer; otherwise *integer is 0. */
bool trek_json_number(trek_json *json, double *value, bool *whole, int64_t *integer);
/* Reads true, false or null as 1, 0 or -1. */
bool trek_json_literal(trek_json *json, int *value);
/* Skips a value and everything in it, up to 64 levels deep. */
bool trek_json_skip(trek_json *json);

/* Appends a string in JSON, including the quotes. */
void trek_json_string(trek_text *out, const char *string);

#endif
