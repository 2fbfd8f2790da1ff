/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries that are opened when they are first needed, so that a program that never needs one neither waits for it
 * nor has to have it. */
#ifndef TREK_TENSOR_LATE_H
#define TREK_TENSOR_LATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

typedef struct trek_late {
    const char *variable;          /* an environment variable that names the file to open instead; NULL: none */
    const char *files[3];          /* the first that exists is used; NULL after the last */
    const char *package;           /* for the message: the Debian package that has it */
    const char *const *names;      /* of the functions, n of them */
    void *functions;               /* receives their addresses, one after the other */
    int n;
    atomic_int state;              /* 0: not tried yet; 1: open; -1: not available */
    char why[200];
} trek_late;

/* Returns whether its functions can be called. Otherwise sets UNSUPPORTED, which names `what` needs it and the
 * package. Any thread may call it. */
bool trek_late_there(trek_late *late, const char *what);

/* Returns whether a library may be opened by this name: a name that the system's loader searches, or a file's
 * absolute path. A relative path would depend on the folder in which the program was started. */
static inline bool trek_late_name_valid(const char *name) { return name[0] == '/' || !strchr(name, '/'); }
#define TREK_LATE_RELATIVE "a file is named by its absolute path"

/* Returns the library, or the folders of libraries, that a variable names. Returns NULL if there is none, or if the
 * process has other rights than the user who started it (set-user-id and the like) and must not run that user's code. */
const char *trek_late_named(const char *name);

/* For lists "F(name)" of functions that begin with PREFIX: the texts of their names, and members for their addresses. */
#define TREK_LATE_FUNCTION(prefix, name) __typeof__(&prefix##name) name;
#define TREK_LATE_NAME(prefix, name) #prefix #name,

#endif
