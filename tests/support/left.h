/* SPDX-License-Identifier: Apache-2.0 */
/* What a test has left behind: threads, open files, files in /dev/shm. */
#ifndef TREK_TESTS_LEFT_H
#define TREK_TESTS_LEFT_H

/* Threads and open files of this process. */
int left_threads(void);
int left_files(void);
/* Threads that stay as long as the process, of the libraries behind an engine ("gloo": also those that it has left connecting to
 * who has died), and of the thread sanitizer. */
int left_by_engine(const char *engine);
/* Waits until there are no more than so many threads: the system takes its time with one that has ended. Returns their number. */
int left_threads_settle(int most);

/* Gives this process, and those that it starts from now on, a /dev/shm of their own if the system allows it, in which no other
 * program makes files; called before there are threads. */
void left_own_shm(void);
/* A file that somebody has left there; NULL if there is none, or if /dev/shm is shared with other programs. */
const char *left_in_shm(void);

#endif
