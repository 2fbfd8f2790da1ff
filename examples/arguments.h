/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the arguments of the examples, "--name value" and "--flag", strictly, and prints --help. */
#ifndef TREK_EXAMPLES_ARGUMENTS_H
#define TREK_EXAMPLES_ARGUMENTS_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct argument {
    const char *name, *value, *help; /* "--epochs", "N", "number of epochs": as --help says it; of a choice "a|b|c" */
    int *whole;                /* where it goes: one of these, which holds its default before (0, NULL: no default is printed) */
    uint64_t *seed;
    double *number;
    const char **text;
    const char **choice;       /* one of the words of `value`, which stand between bars */
    bool *flag;                /* takes no value; true if it is there */
    double least, most;        /* of numbers; most 0: as large as the type is */
} argument;

static inline bool argument_is_choice(const argument *a, const char *value)
{
    size_t length = strlen(value);
    for (const char *word = a->value; word; word = strchr(word, '|') ? strchr(word, '|') + 1 : NULL)
        if (length && strcspn(word, "|") == length && strncmp(word, value, length) == 0)
            return true;
    return false;
}

/* False: `value` is not such a number or word. */
static inline bool argument_read(const argument *a, const char *value)
{
    char *end;
    errno = 0;
    if (a->text || a->choice) {
        *(a->text ? a->text : a->choice) = value;
        return a->text ? *value != '\0' : argument_is_choice(a, value);
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

static inline void arguments_usage(const char *program, const argument *list, int n, FILE *to)
{
    fprintf(to, "usage: %s", program);
    for (int k = 0; k < n; k++)
        fprintf(to, " [%s%s%s]", list[k].name, list[k].flag ? "" : " ", list[k].flag ? "" : list[k].value);
    fprintf(to, "\n");
}

/* A line for each option: name, value, what it is, default. */
static inline void arguments_help(const char *program, const char *about, const argument *list, int n)
{
    size_t width = strlen("--help"), length;
    for (int k = 0; k < n; k++) {
        length = strlen(list[k].name) + (list[k].flag ? 0 : 1 + strlen(list[k].value));
        width = length > width ? length : width;
    }
    printf("usage: %s [OPTION VALUE]...\n%s%s\n", program, about ? about : "", about ? "\n" : "");
    for (int k = 0; k < n; k++) {
        const argument *a = &list[k];
        int said = printf("  %s%s%s", a->name, a->flag ? "" : " ", a->flag ? "" : a->value);
        printf("%*s  %s", (int)width + 2 - said, "", a->help ? a->help : "");
        if (a->whole && *a->whole)
            printf(" (default %d)", *a->whole);
        else if (a->number && *a->number != 0)
            printf(" (default %g)", *a->number);
        else if (a->seed && *a->seed)
            printf(" (default %llu)", (unsigned long long)*a->seed);
        else if ((a->text && *a->text) || (a->choice && *a->choice))
            printf(" (default %s)", a->text ? *a->text : *a->choice);
        printf("\n");
    }
    printf("  %-*s  this text\n", (int)width, "--help");
}

static inline void argument_complain(const argument *a, const char *value)
{
    const char *kind = a->choice ? a->value : a->text ? "a name" : a->number ? "a number" : "a whole number";
    char range[64] = "";
    if ((a->whole || a->number) && a->most > 0)
        snprintf(range, sizeof range, " from %g to %g", a->least, a->most);
    else if (a->whole || a->number)
        snprintf(range, sizeof range, " from %g on", a->least);
    fprintf(stderr, "%s takes ", a->name);
    for (const char *at = kind; *at; at++) { /* "a|b|c" is said as "a, b or c" */
        if (a->choice && *at == '|')
            fputs(strchr(at + 1, '|') ? ", " : " or ", stderr);
        else
            fputc(*at, stderr);
    }
    fprintf(stderr, "%s, not %s\n", range, value ? value : "nothing");
}

/* Reads them all. Does not come back where something was not understood, which has been said (exit 2), nor after --help
 * (exit 0; about: what the program does, NULL: nothing is said). */
static inline void arguments_read(int argc, char **argv, const char *about, const argument *list, int n)
{
    for (int k = 1; k < argc; k++)
        if (strcmp(argv[k], "--help") == 0) {
            arguments_help(argv[0], about, list, n);
            exit(fflush(stdout) ? 1 : 0);
        }
    for (int k = 1; k < argc; k++) {
        int found = 0;
        while (found < n && strcmp(list[found].name, argv[k]) != 0)
            found++;
        if (found < n && list[found].flag) {
            *list[found].flag = true;
            continue;
        }
        const char *value = found < n && k + 1 < argc ? argv[k + 1] : NULL;
        if (value && argument_read(&list[found], value)) {
            k++;
            continue;
        }
        if (found < n)
            argument_complain(&list[found], value);
        else
            fprintf(stderr, "there is no option %s\n", argv[k]);
        arguments_usage(argv[0], list, n, stderr);
        exit(2);
    }
}

/* Returns whether a file can be made there; an existing file is not changed. Prints the reason if not. */
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
