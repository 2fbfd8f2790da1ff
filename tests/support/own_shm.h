/* SPDX-License-Identifier: Apache-2.0 */
/* A /dev/shm in which no other program makes files: what is there in the end, this one has left. */
#ifndef TREK_TESTS_OWN_SHM_H
#define TREK_TESTS_OWN_SHM_H

/* For this process and those that it starts from now on, if the system allows it; called before there are threads. */
void own_shm_make(void);
/* A file that somebody has left there; NULL if there is none, or if /dev/shm is shared with other programs. */
const char *own_shm_left(void);

#endif
