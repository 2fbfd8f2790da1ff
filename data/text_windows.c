/* SPDX-License-Identifier: Apache-2.0 */
/* Windows of text with one number per character. */
#include <inttypes.h>
#include <string.h>

#include "data/idx_internal.h"

typedef struct text_windows {
    trek_dataset base;
    unsigned char *text; /* numbers of the characters */
    size_t length;
    int64_t window, stride, windows;
    int vocabulary;
    unsigned char characters[256]; /* number -> character */
    int16_t numbers[256];          /* character -> number; -1 if it is not in the file */
} text_windows;

static const char *const window_fields[2] = { "input", "target" };

static int64_t text_length(const trek_dataset *self) { return ((const text_windows *)self)->windows; }

static trek_status text_get(trek_dataset *self, const trek_fetch *fetch, trek_tensor **out)
{
    const text_windows *set = (const text_windows *)self;
    for (int k = 0; k < 2; k++) {
        out[k] = trek_dataset_tensor(fetch->n, trek_dims(set->window), TREK_I64);
        if (!out[k])
            return trek_status_or(TREK_ERR_MEMORY);
        int64_t *to = trek_tensor_data(out[k]);
        for (int64_t i = 0; i < fetch->n; i++) {
            const unsigned char *from = set->text + fetch->indices[i] * set->stride + k;
            for (int64_t t = 0; t < set->window; t++)
                *to++ = from[t];
        }
    }
    return TREK_OK;
}

static void text_free(trek_dataset *self) { trek_free(((text_windows *)self)->text); }

static const trek_dataset_class text_class = {
    .name = "text_windows", .size = sizeof(text_windows), .length = text_length, .get = text_get, .free = text_free,
    .n_fields = 2, .fields = window_fields,
};

static void number_characters(text_windows *set)
{
    bool seen[256] = { false };
    for (size_t i = 0; i < set->length; i++)
        seen[set->text[i]] = true;
    for (int c = 0; c < 256; c++) {
        set->numbers[c] = seen[c] ? (int16_t)set->vocabulary : -1;
        if (seen[c])
            set->characters[set->vocabulary++] = (unsigned char)c;
    }
    for (size_t i = 0; i < set->length; i++)
        set->text[i] = (unsigned char)set->numbers[set->text[i]];
}

trek_dataset *trek_dataset_text_windows(const char *path, int64_t window, const trek_text_windows_opts *opts)
{
    if (!path) {
        trek_fail_missing("dataset_text_windows", "path");
        return NULL;
    }
    int64_t stride = opts && opts->stride ? opts->stride : window;
    if (window < 1 || stride < 1)
        return trek_fail_null(TREK_ERR_ARGUMENT,
                              "dataset_text_windows: window: %" PRId64 ", stride: %" PRId64 "; both must be at least 1", window,
                              stride);
    text_windows *set = (text_windows *)trek_dataset_new(&text_class);
    trek_dataset *base = (trek_dataset *)set;
    if (!set)
        return NULL;
    if (trek_file_load(path, true, &set->text, &set->length) != TREK_OK) {
        trek_dataset_free(&base);
    } else if ((uint64_t)set->length <= (uint64_t)window) {
        trek_fail(TREK_ERR_FORMAT, "%s: %zu characters; too short for a window of %" PRId64 " and its target", path, set->length,
                  window);
        trek_dataset_free(&base);
    } else {
        set->window = window;
        set->stride = stride;
        set->windows = ((int64_t)set->length - window - 1) / stride + 1;
        number_characters(set);
    }
    return base;
}

static const text_windows *text_of(const trek_dataset *dataset, const char *function)
{
    const trek_dataset *root = trek_dataset_root(dataset);
    if (!root)
        trek_fail_missing(function, "dataset");
    else if (root->klass != &text_class)
        trek_fail(TREK_ERR_ARGUMENT, "%s: dataset: %s; must be text_windows", function, root->klass->name);
    return root && root->klass == &text_class ? (const text_windows *)root : NULL;
}

const unsigned char *trek_text_vocabulary(const trek_dataset *dataset, int *size)
{
    const text_windows *set = text_of(dataset, "text_vocabulary");
    if (set && size)
        *size = set->vocabulary;
    return set ? set->characters : NULL;
}

trek_status trek_text_encode(const trek_dataset *dataset, const char *text, int64_t count, int64_t *ids)
{
    const text_windows *set = text_of(dataset, "text_encode");
    if (!set)
        return trek_error_status();
    if (!text || !ids)
        return trek_fail_missing("text_encode", text ? "room for the numbers" : "text");
    for (int64_t i = 0; i < count; i++) {
        ids[i] = set->numbers[(unsigned char)text[i]];
        if (ids[i] < 0)
            return trek_fail(TREK_ERR_ARGUMENT,
                             "text_encode: text: the character 0x%02x at place %" PRId64 " does not occur in the file",
                             (unsigned char)text[i], i);
    }
    return TREK_OK;
}
