/* SPDX-License-Identifier: Apache-2.0 */
/* The characters that examples learn: those of a text file, or of generated sentences. */
#ifndef TREK_EXAMPLES_TEXT_H
#define TREK_EXAMPLES_TEXT_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trek.h"

/* "input" and "target" i64 [n, window], the target one character further; the last tenth of the windows tests. */
typedef struct text {
    trek_dataset *train, *test, *whole; /* the caller's: text_close. NULL and an error on failure */
    unsigned char letters[256];         /* the distinct characters, sorted: number k is letters[k] */
    int n_letters;
} text;

/* Sentences of a small grammar: about half a nat to a character is not to be foreseen. Returns characters (malloc). */
static inline char *text_made_up(int64_t length, uint64_t seed)
{
    static const char *const subjects[] = { "the fox", "a crow", "the old king", "my daughter", "every sailor", "the moon" };
    static const char *const verbs[] = { "sees", "follows", "loves", "has lost", "sings of", "hides from" };
    static const char *const objects[] = { "the sea", "a red door", "seven ships", "the winter", "an open book", "the crown" };
    char *characters = malloc((size_t)length + 64);
    for (int64_t at = 0; characters && at < length; ) {
        int word[3];
        for (int k = 0; k < 3; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            word[k] = (int)((seed >> 33) % 6);
        }
        at += snprintf(characters + at, 64, "%s %s %s.\n", subjects[word[0]], verbs[word[1]], objects[word[2]]);
    }
    return characters;
}

static inline int64_t text_number(const text *t, char character)
{
    const unsigned char *found = memchr(t->letters, (unsigned char)character, (size_t)t->n_letters);
    return found ? found - t->letters : -1;
}

/* Windows of characters in memory, as trek_dataset_text_windows has them of a file. */
static inline trek_dataset *text_windows(text *t, const char *characters, int64_t length, int64_t window)
{
    bool there[256] = { false };
    for (int64_t i = 0; i < length; i++)
        there[(unsigned char)characters[i]] = true;
    for (int c = 0; c < 256; c++)
        if (there[c])
            t->letters[t->n_letters++] = (unsigned char)c;
    int64_t n = (length - 1) / window;
    trek_tensor *fields[2];
    for (int k = 0; k < 2; k++) {
        fields[k] = trek_tensor_empty(trek_dims(n, window), TREK_I64, trek_cpu(0));
        int64_t *to = fields[k] ? trek_tensor_data(fields[k]) : NULL;
        for (int64_t i = 0; to && i < n * window; i++)
            to[i] = text_number(t, characters[i + k]);
    }
    trek_dataset *set = trek_dataset_tensors((const char *const[]){ "input", "target" }, fields, 2);
    trek_tensor_release(fields[0]);
    trek_tensor_release(fields[1]);
    return set;
}

/* Windows of a file; path NULL: of about `made_up` characters that are made up. */
static inline text text_open(const char *path, int64_t window, int64_t made_up)
{
    text t = { .n_letters = 0 };
    if (path) {
        t.whole = trek_dataset_text_windows(path, window, NULL);
        const unsigned char *letters = t.whole ? trek_text_vocabulary(t.whole, &t.n_letters) : NULL;
        for (int k = 0; letters && k < t.n_letters; k++)
            t.letters[k] = letters[k];
    } else {
        char *characters = text_made_up(made_up, 1);
        t.whole = characters ? text_windows(&t, characters, made_up, window) : NULL;
        free(characters);
    }
    int64_t n = t.whole ? trek_dataset_length(t.whole) : 0, tests = n / 10;
    t.train = t.whole ? trek_dataset_subset(trek_dataset_retain(t.whole), 0, n - tests) : NULL;
    t.test = t.whole ? trek_dataset_subset(trek_dataset_retain(t.whole), n - tests, tests) : NULL;
    return t;
}

static inline void text_close(text *t)
{
    trek_dataset_free(&t->train);
    trek_dataset_free(&t->test);
    trek_dataset_free(&t->whole);
}

#endif
