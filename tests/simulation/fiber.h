/* SPDX-License-Identifier: Apache-2.0 */
/* Fibers: threads of a simulated process, all on one thread of the system. Each has a stack of a pool and its own copy of the
 * program's _Thread_local variables (and of errno), which stands in their place while it runs. */
#ifndef TREK_TESTS_SIMULATION_FIBER_H
#define TREK_TESTS_SIMULATION_FIBER_H

#include <stddef.h>

typedef struct fiber {
    void *sp;     /* where it goes on */
    char *stack;  /* NULL: of the thread itself */
    char *locals; /* the thread's variables while it does not run */
    int error;    /* errno */
    void (*run)(void *arg);
    void *arg;
    const void *bottom; /* for the address sanitizer */
    size_t size;
    void *fake;
    void *shadow;       /* for the thread sanitizer */
    struct fiber *next; /* of the list of free fibers */
} fiber;

/* The thread that calls it becomes the first fiber; what its variables hold now is what others begin with. */
fiber *fiber_begin(void);
/* run must not return: it ends by switching away, and never back. */
fiber *fiber_new(void (*run)(void *arg), void *arg);
/* Its stack is another one's from here on. The one that runs must switch away at once. */
void fiber_free(fiber *f);
void fiber_switch(fiber *to);
/* fn is called with that one's variables in place, on the stack of the one that runs. */
void fiber_call(fiber *other, void (*fn)(void));
size_t fiber_locals_size(void);

#endif
