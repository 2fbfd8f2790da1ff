/* SPDX-License-Identifier: Apache-2.0 */
/* Settings from the environment, read strictly: an invalid value is an error when the library is first used (for the
 * memory of tensors), and the default is used where it is read. */
#ifndef TREK_TENSOR_ENVIRONMENT_H
#define TREK_TENSOR_ENVIRONMENT_H

#include "tensor/status.h"

/* Checks all variables that the library knows. Fails with ARGUMENT, which names the variable, the value and what is
 * allowed. */
trek_status trek_environment_check(void);

/* Variables in which launchers tell a process its number on its machine: trek-run, torchrun, Open MPI, Slurm. */
#define TREK_LOCAL_RANK_VARIABLES "TREK_LOCAL_RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"
/* Returns that number from the first variable that is set; 0 if none is, or if it is invalid (joining the job reports
 * that). */
int trek_environment_local_rank(void);

/* Returns a whole number from low to high, decimal or 0x..; `unset` if the variable is not set, empty or invalid. */
long trek_environment_number(const char *name, long low, long high, long unset);

/* Returns the index of the value among n choices; `unset` if the variable is not set, empty or not one of them. */
int trek_environment_choice(const char *name, const char *const *choices, int n, int unset);

#endif
