/* SPDX-License-Identifier: Apache-2.0 */
/* Just enough JSON to read headers, strictly. Every function returns false after
 * an error, which is then set (FORMAT, or MEMORY), with the place in it. Internal. */
#ifndef TREK_NN_JSON_H
#define TREK_NN_JSON_H

#include "nn/text.h"

typedef struct trek_json {
    const char *start, *at, *end;
    const char *path;         /* for messages */
} trek_json;

bool trek_json_fail(const trek_json *json, const char *what);
/* The next character that is no white space, left in place; 0 at the end. */
char trek_json_peek(trek_json *json);
/* Exactly this character. */
bool trek_json_expect(trek_json *json, char wanted);
/* Inside an object or array, after an item: passes "," (*more) or the closing character. */
bool trek_json_next(trek_json *json, char close, bool *more);
/* After "{" or "[": whether there is a first item; passes the closing character if not. */
bool trek_json_first(trek_json *json, char close, bool *more);
/* A string, as a new NUL-terminated one (trek_free). An escaped NUL is refused. */
bool trek_json_string_new(trek_json *json, char **string);
/* "key": with its colon. */
bool trek_json_key_new(trek_json *json, char **key);
/* A non-negative integer without sign, fraction, exponent or leading zeros, at most INT64_MAX. */
bool trek_json_integer(trek_json *json, int64_t *value);
/* Any number, whatever the locale: *whole says that it was written as an integer, which *integer then is (else it is 0). */
bool trek_json_number(trek_json *json, double *value, bool *whole, int64_t *integer);
/* true, false or null: 1, 0, -1. */
bool trek_json_literal(trek_json *json, int *value);
/* Passes over a value, with all that is in it: at most 64 deep. */
bool trek_json_skip(trek_json *json);

#endif
