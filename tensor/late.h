/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries that are opened when they are first needed: a program that never does neither waits for them nor has to have them.
 * Internal. */
#ifndef TREK_TENSOR_LATE_H
#define TREK_TENSOR_LATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

typedef struct trek_late {
    const char *variable;          /* of the environment: the file to open instead; NULL: none */
    const char *files[3];          /* the first that is there; NULL behind them */
    const char *package;           /* for the message: Debian's, which has it */
    const char *const *names;      /* of the functions, n of them */
    void *functions;               /* their addresses go there, one behind the other */
    int n;
    atomic_int state;              /* 0: not tried yet; 1: open; -1: it is not there */
    char why[200];
} trek_late;

/* Whether its functions can be called; else UNSUPPORTED, which names `what` needs it and the package. Any thread. */
bool trek_late_there(trek_late *late, const char *what);

/* Whether a library may be opened by this name: one for which the system's loader looks in its folders, or a file's absolute
 * path. What a relative one means depends on the folder in which the program was started. */
static inline bool trek_late_name_valid(const char *name) { return name[0] == '/' || !strchr(name, '/'); }
#define TREK_LATE_RELATIVE "a file is named by its absolute path"

/* "F(name)" of a list of functions that begin with PREFIX: their names' texts, and places for their addresses. */
#define TREK_LATE_FUNCTION(prefix, name) __typeof__(&prefix##name) name;
#define TREK_LATE_NAME(prefix, name) #prefix #name,

#endif
