/* SPDX-License-Identifier: Apache-2.0 */
/* What the examples do with their arguments: "--name value", read strictly. */
#ifndef TREK_EXAMPLES_ARGUMENTS_H
#define TREK_EXAMPLES_ARGUMENTS_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct argument {
    const char *name, *value;  /* "--epochs", "N": as the usage says it */
    int *whole;                /* where it goes: one of these */
    uint64_t *seed;
    double *number;
    const char **text;
    double least, most;        /* of numbers; most 0: as large as the type is */
} argument;

/* False: `value` is no such number. */
static inline bool argument_read(const argument *a, const char *value)
{
    char *end;
    errno = 0;
    if (a->text) {
        *a->text = value;
        return *value != '\0';
    }
    if (a->seed) {
        *a->seed = strtoull(value, &end, 10);
        return *value >= '0' && *value <= '9' && *end == '\0' && errno == 0;
    }
    double most = a->most ? a->most : a->whole ? 2147483647 : 1e300;
    double number = a->whole ? (double)strtol(value, &end, 10) : strtod(value, &end);
    if (end == value || *end != '\0' || errno != 0 || !(number >= a->least && number <= most))
        return false;
    if (a->whole)
        *a->whole = (int)number;
    else
        *a->number = number;
    return true;
}

static inline void arguments_usage(const char *program, const argument *list, int n)
{
    fprintf(stderr, "usage: %s", program);
    for (int k = 0; k < n; k++)
        fprintf(stderr, " [%s %s]", list[k].name, list[k].value);
    fprintf(stderr, "\n");
}

static inline void argument_complain(const argument *a, const char *value)
{
    const char *kind = a->text ? "a name" : a->number ? "a number" : "a whole number";
    char range[64] = "";
    if ((a->whole || a->number) && a->most > 0)
        snprintf(range, sizeof range, " from %g to %g", a->least, a->most);
    else if (a->whole || a->number)
        snprintf(range, sizeof range, " from %g on", a->least);
    fprintf(stderr, "%s takes %s%s, not %s\n", a->name, kind, range, value ? value : "nothing");
}

/* False: something was not understood, which has been said. */
static inline bool arguments_read(int argc, char **argv, const argument *list, int n)
{
    for (int k = 1; k < argc; k += 2) {
        const char *value = k + 1 < argc ? argv[k + 1] : NULL;
        int found = 0;
        while (found < n && strcmp(list[found].name, argv[k]) != 0)
            found++;
        if (found < n && value && argument_read(&list[found], value))
            continue;
        if (found < n)
            argument_complain(&list[found], value);
        else if (strcmp(argv[k], "--help") != 0)
            fprintf(stderr, "there is no option %s\n", argv[k]);
        arguments_usage(argv[0], list, n);
        return false;
    }
    return true;
}

/* Whether a file can be made there; what is there stays as it is. Says why not. */
static inline bool argument_can_be_written(const char *path)
{
    char trial[4200];
    snprintf(trial, sizeof trial, "%s.trial", path);
    FILE *file = fopen(trial, "wb");
    if (!file) {
        fprintf(stderr, "%s cannot be written: %s\n", path, strerror(errno));
        return false;
    }
    fclose(file);
    remove(trial);
    return true;
}

#endif
