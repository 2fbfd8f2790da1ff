/* SPDX-License-Identifier: Apache-2.0 */
/* Configurations of models. */
#include "nn/config.h"

#include <string.h>

#include "nn/json.h"
#include "nn/read_file.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

#define MOST_BYTES (16u << 20)
#define MOST_ITEMS 4096 /* items are looked up one by one */

typedef enum kind { OTHER, INTEGER, NUMBER, BOOL, TEXT } kind;

typedef struct item {
    char *key, *text;
    kind kind;
    double number;
    int64_t integer;          /* also for a BOOL */
} item;

struct trek_config {
    char *path;
    item *items;
    int n, capacity;
};

void trek_config_free(trek_config **config)
{
    if (!config || !*config)
        return;
    trek_config *c = *config;
    *config = NULL;
    for (int k = 0; k < c->n; k++) {
        trek_free(c->items[k].key);
        trek_free(c->items[k].text);
    }
    trek_free(c->items);
    trek_free(c->path);
    trek_free(c);
}

static const item *find(const trek_config *c, const char *key)
{
    for (int k = 0; k < c->n; k++)
        if (strcmp(c->items[k].key, key) == 0)
            return &c->items[k];
    return NULL;
}

static bool parse_value(trek_json *json, item *to)
{
    char first = trek_json_peek(json);
    bool whole;
    int literal;
    if (first == '"') {
        to->kind = TEXT;
        return trek_json_string_new(json, &to->text);
    }
    if (first == '-' || (first >= '0' && first <= '9')) {
        if (!trek_json_number(json, &to->number, &whole, &to->integer))
            return false;
        to->kind = whole ? INTEGER : NUMBER;
        return true;
    }
    if (first == '{' || first == '[')
        return trek_json_skip(json);
    if (!trek_json_literal(json, &literal))
        return false;
    to->kind = literal < 0 ? OTHER : BOOL;
    to->integer = literal;
    return true;
}

static bool parse_items(trek_json *json, trek_config *c)
{
    bool more;
    if (!trek_json_expect(json, '{') || !trek_json_first(json, '}', &more))
        return false;
    while (more) {
        char *key;
        if (c->n == MOST_ITEMS)
            return trek_json_fail(json, "more keys than any configuration needs");
        if (!trek_json_key_new(json, &key))
            return false;
        bool twice = find(c, key) != NULL;
        if (twice || trek_array_grow(&c->items, &c->capacity, c->n + 1, sizeof *c->items) != TREK_OK) {
            trek_free(key);
            return twice && trek_json_fail(json, "a key occurs twice");
        }
        c->items[c->n] = (item){ .key = key };
        if (!parse_value(json, &c->items[c->n++]) || !trek_json_next(json, '}', &more))
            return false;
    }
    return (trek_json_peek(json) == 0 && json->at == json->end) || trek_json_fail(json, "text after the object's end");
}

trek_config *trek_config_read(const char *path)
{
    char *text;
    size_t length;
    if (!path) {
        trek_fail_missing("config_read", "path");
        return NULL;
    }
    trek_config *c = trek_calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->path = trek_strdup(path);
    if (!c->path || trek_read_file(path, MOST_BYTES, &text, &length) != TREK_OK) {
        trek_config_free(&c);
        return NULL;
    }
    trek_json json = { text, text, text + length, path };
    if (!parse_items(&json, c))
        trek_config_free(&c);
    trek_free(text);
    return c;
}

bool trek_config_has(const trek_config *c, const char *key) { return c && key && find(c, key); }

/* Returns the item of this key, or NULL with an error set. */
static const item *wanted(const trek_config *c, const char *key, const void *value, kind is, kind or_is, const char *what)
{
    if (!c || !key || !value) {
        trek_fail_missing("config", !c ? "configuration" : !key ? "key" : "value");
        return NULL;
    }
    const item *found = find(c, key);
    if (found && (found->kind == is || found->kind == or_is))
        return found;
    return trek_fail_null(TREK_ERR_ARGUMENT, "%s: \"%s\": %s%s", c->path, key, found ? "it must be " : "it does not exist",
                          found ? what : "");
}

trek_status trek_config_integer(const trek_config *c, const char *key, int64_t *value)
{
    const item *found = wanted(c, key, value, INTEGER, INTEGER, "an integer");
    if (found)
        *value = found->integer;
    return found ? TREK_OK : trek_error_status();
}

trek_status trek_config_number(const trek_config *c, const char *key, double *value)
{
    const item *found = wanted(c, key, value, NUMBER, INTEGER, "a number");
    if (found)
        *value = found->number;
    return found ? TREK_OK : trek_error_status();
}

trek_status trek_config_bool(const trek_config *c, const char *key, bool *value)
{
    const item *found = wanted(c, key, value, BOOL, BOOL, "true or false");
    if (found)
        *value = found->integer != 0;
    return found ? TREK_OK : trek_error_status();
}

trek_status trek_config_string(const trek_config *c, const char *key, const char **value)
{
    const item *found = wanted(c, key, value, TEXT, TEXT, "a text");
    if (found)
        *value = found->text;
    return found ? TREK_OK : trek_error_status();
}
