/* SPDX-License-Identifier: Apache-2.0 */
/* trek-run started from a test: what it writes, how it ends, what runs meanwhile. */
#ifndef TREK_TESTS_TOOLS_LAUNCHED_H
#define TREK_TESTS_TOOLS_LAUNCHED_H

#include <stddef.h>
#include <sys/types.h>

typedef struct run {
    pid_t pid;
    int out;
    char text[8192];
    int status; /* as of waitpid */
} run;

extern char launched_program[4096];

void sleep_ms(int ms);
/* Where trek-run is. */
void launched_find(void);
/* argv[0] is filled in. Both outputs come back; input (NULL: none) is what it reads. */
void start(run *r, char **argv, const char *input);
/* NULL: until it ends. */
void read_until(run *r, const char *part);
void finish(run *r);

/* Words of a shell's script: waits until the launcher has seen the ends of so many processes. */
#define AFTER_ENDS(count) "until [ $(grep -c . /proc/self/fd/$TREK_LAUNCHER_FD) -ge " #count " ]; do sleep 0.01; done; "

#define RUN(r, input, ...)                                                                                                       \
    do {                                                                                                                         \
        start((r), (char *[]){ NULL, __VA_ARGS__, NULL }, (input));                                                              \
        finish(r);                                                                                                               \
    } while (0)

void check_exit(const run *r, int code);
int count_of(const char *text, const char *part);
/* Waits until no process has this word in its command line. */
void check_gone(const char *word);
/* A number of seconds that no other program sleeps for. */
const char *unique(int k);
/* The bytes of a file of the folder; how many. */
size_t read_log(const char *folder, const char *name, char *to, size_t size);

#endif
