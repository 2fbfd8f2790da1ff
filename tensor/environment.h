/* SPDX-License-Identifier: Apache-2.0 */
/* Settings from the environment, read strictly: what is not understood is an error when the library is first used (for
 * tensors' memory), and where it is read the default holds. Internal. */
#ifndef TREK_TENSOR_ENVIRONMENT_H
#define TREK_TENSOR_ENVIRONMENT_H

#include "tensor/status.h"

/* All variables that the library knows, each against what it takes. ARGUMENT, naming variable, value and what it takes. */
trek_status trek_environment_check(void);

/* In what launchers tell a process its number among those of its machine: trek-run, torchrun, Open MPI, Slurm. */
#define TREK_LOCAL_RANK_VARIABLES "TREK_LOCAL_RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"
/* That number as the first of them has it; 0 where none has, or is no such number (joining the job tells). */
int trek_environment_local_rank(void);

/* A whole number from low to high, decimal or 0x..; `unset` where the variable is not set, empty or no such number. */
long trek_environment_number(const char *name, long low, long high, long unset);

/* The library, or the folders of libraries, that a variable names; NULL: none, or the process has other rights than who started
 * it (set-user-id and the like), whose code it shall not run. */
const char *trek_environment_library(const char *name);

/* The place of the value among n choices; `unset` where the variable is not set, empty or none of them. */
int trek_environment_choice(const char *name, const char *const *choices, int n, int unset);

#endif
