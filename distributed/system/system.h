/* SPDX-License-Identifier: Apache-2.0 */
/* The operating system as distributed/ sees it: time, locks, threads, and what belongs to one process; the network is
 * in socket.h. In the library this is a thin layer over the clock, pthread and futex. With TREK_SIMULATED defined the
 * functions are only declared: a simulator of many processes in one has its own. */
#ifndef TREK_DISTRIBUTED_SYSTEM_SYSTEM_H
#define TREK_DISTRIBUTED_SYSTEM_SYSTEM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef TREK_SIMULATED
#define TREK_SYSTEM extern
struct trek_simulated_thread;
typedef struct trek_simulated_thread *trek_thread;
typedef struct trek_lock {
    struct trek_simulated_thread *holder, *waiting;
} trek_lock;
typedef struct trek_condition {
    struct trek_simulated_thread *waiting;
} trek_condition;
#define TREK_LOCK_INIT                                                                                                           \
    {                                                                                                                            \
        0                                                                                                                        \
    }
#define TREK_CONDITION_INIT                                                                                                      \
    {                                                                                                                            \
        0                                                                                                                        \
    }
#else
#include <pthread.h>
#define TREK_SYSTEM static inline
typedef pthread_t trek_thread;
typedef pthread_mutex_t trek_lock;
typedef pthread_cond_t trek_condition;
#define TREK_LOCK_INIT PTHREAD_MUTEX_INITIALIZER
#define TREK_CONDITION_INIT PTHREAD_COND_INITIALIZER
#endif

/* --- the clock: monotonic, in nanoseconds; that of trek_clock_ns() -------------------------------------------------- */

TREK_SYSTEM int64_t trek_now_ns(void);
TREK_SYSTEM void trek_sleep_until_ns(int64_t until_ns);
/* Sleeps; a signal may end it early. */
TREK_SYSTEM void trek_sleep_ns(int64_t ns);
/* Waits without giving up the core, as if it worked. */
TREK_SYSTEM void trek_busy_until_ns(int64_t until_ns);

/* --- locks and conditions ------------------------------------------------------------------------------------------- */

/* Make and destroy locks and conditions; init returns false if the system has none left. One that is initialised with
 * TREK_LOCK_INIT or TREK_CONDITION_INIT needs no init; such a condition cannot be used with
 * trek_condition_wait_until. */
TREK_SYSTEM bool trek_lock_init(trek_lock *lock);
TREK_SYSTEM void trek_lock_destroy(trek_lock *lock);
TREK_SYSTEM void trek_lock_acquire(trek_lock *lock);
TREK_SYSTEM void trek_lock_release(trek_lock *lock);
/* Return whether they got the lock: at once, or within that time. */
TREK_SYSTEM bool trek_lock_try(trek_lock *lock);
TREK_SYSTEM bool trek_lock_acquire_within(trek_lock *lock, int64_t ns);

TREK_SYSTEM bool trek_condition_init(trek_condition *condition);
TREK_SYSTEM void trek_condition_destroy(trek_condition *condition);
/* Wait with the lock held, which is released meanwhile. Both may return although nobody has woken them.
 * trek_condition_wait_until returns false when that time has come. */
TREK_SYSTEM void trek_condition_wait(trek_condition *condition, trek_lock *lock);
TREK_SYSTEM bool trek_condition_wait_until(trek_condition *condition, trek_lock *lock, int64_t until_ns);
TREK_SYSTEM void trek_condition_wake_all(trek_condition *condition);
TREK_SYSTEM void trek_condition_wake_one(trek_condition *condition);

/* --- words that threads wait on; control/wait.h makes gates of them -------------------------------------------------- */

/* Sleeps while the word is `value`, until somebody wakes it; may return early. shared: the word lies in memory of
 * several processes. until_ns 0: no limit. Returns false when that time has passed. */
TREK_SYSTEM bool trek_word_wait(atomic_uint *word, unsigned value, bool shared, int64_t until_ns);
TREK_SYSTEM void trek_word_wake(atomic_uint *word, bool shared);
/* Returns whether a thread that reads a word repeatedly, without giving up the core, can see it change. */
TREK_SYSTEM bool trek_word_spins(void);

/* --- threads --------------------------------------------------------------------------------------------------------- */

/* Starts a thread. Signals are blocked in it, because they are meant for the program's threads. Returns 0 or an errno. */
TREK_SYSTEM int trek_thread_begin(trek_thread *thread, void *(*run)(void *arg), void *arg);
TREK_SYSTEM void trek_thread_join(trek_thread thread);
TREK_SYSTEM void trek_thread_detach(trek_thread thread);
TREK_SYSTEM trek_thread trek_thread_self(void);
TREK_SYSTEM bool trek_thread_equal(trek_thread a, trek_thread b);
/* Names a thread, with at most 15 characters. */
TREK_SYSTEM void trek_thread_name(trek_thread thread, const char *name);
/* Lets other threads run first. In the simulation time goes on even if there are none. */
TREK_SYSTEM void trek_thread_yield(void);

/* --- the process ----------------------------------------------------------------------------------------------------- */

int trek_process_id(void);
int trek_process_parent(void);
/* Writes the name of the machine, at most size bytes, including the end. */
void trek_process_host(char *text, size_t size);
/* Registers fn to be called when the process ends by exit(). Returns whether that succeeded. */
bool trek_process_at_exit(void (*fn)(void));
/* Writes bytes that nobody can predict. Returns false if the system has none. */
bool trek_process_random(void *bytes, size_t n);
/* Return a variable of its environment (NULL: it is not set), and a number as trek_environment_number reads it. */
const char *trek_process_variable(const char *name);
long trek_process_number(const char *name, long low, long high, long unset);
/* Open a plug-in (NULL on failure, and `why` gets the reason), and find a symbol in it (NULL: it has none). */
void *trek_process_plugin(const char *plugin, char *why, size_t size);
void *trek_process_symbol(void *library, const char *name);
/* Opens what descriptor fd of process pid refers to once more, for reading and writing. Returns a descriptor that the caller
 * closes, or -1 if that is not possible. */
int trek_process_file(int pid, int fd);
/* Return the text of strerror, with the limit of the process if it is one ("Too many open files (the limit of this
 * process: ulimit -n is 12)"), and whether it is one. */
char *trek_process_why(int error, char *text, size_t size);
bool trek_process_is_limit(int error);
/* Describes the extent of the machine: one kernel, one view of its processes, one /dev/shm. The text is the same for
 * all processes inside. */
void trek_process_machine(char *text, size_t size);

/* Data that belong to a process, or to a thread, and to no object. After
 *
 *     TREK_PER_PROCESS(job_state, job, { .lock = TREK_LOCK_INIT });
 *
 * job() returns their address, and this is their initial value. In the library it is a static variable. */
#ifdef TREK_SIMULATED
void *trek_process_own(const void *initial, size_t size);
void *trek_thread_own(const void *initial, size_t size);
#define TREK_PER_PROCESS(type, name, ...)                                                                                        \
    static const type name##_initial = __VA_ARGS__;                                                                              \
    static inline type *name(void) { return trek_process_own(&name##_initial, sizeof(type)); }                                   \
    static inline type *name(void)
#define TREK_PER_THREAD(type, name, ...)                                                                                         \
    static const type name##_initial = __VA_ARGS__;                                                                              \
    static inline type *name(void) { return trek_thread_own(&name##_initial, sizeof(type)); }                                    \
    static inline type *name(void)
#else
#define TREK_PER_PROCESS(type, name, ...)                                                                                        \
    static type name##_own = __VA_ARGS__;                                                                                        \
    static inline type *name(void) { return &name##_own; }                                                                       \
    static inline type *name(void)
#define TREK_PER_THREAD(type, name, ...)                                                                                         \
    static _Thread_local type name##_own = __VA_ARGS__;                                                                          \
    static inline type *name(void) { return &name##_own; }                                                                       \
    static inline type *name(void)
#include "distributed/system/real.h"
#endif

#endif
