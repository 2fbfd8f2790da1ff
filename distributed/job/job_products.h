/* SPDX-License-Identifier: Apache-2.0 */
/* All processes of a job compute products of f32 in one way, so that replicas have the same bits: by tiles (AMX) if that is
 * wanted in each of them, otherwise by multiply-add. */
#ifndef TREK_DISTRIBUTED_JOB_JOB_PRODUCTS_H
#define TREK_DISTRIBUTED_JOB_JOB_PRODUCTS_H

#include "distributed/comm/comm.h"

/* Chooses at setup: what each process's TREK_F32_PRODUCTS or measurement says. A collective. */
trek_status trek_job_products_choose(trek_comm *comm);
/* Chooses ways that no measurement has a part in, for training that is to have the same bits elsewhere: f32 by
 * multiply-add, and bf16 by tiles if all processes have them. Variables that are set count. */
trek_status trek_job_products_fix(trek_comm *comm);

/* Returns "fma" or "tiles", which a checkpoint keeps. */
const char *trek_job_products_name(void);

/* Goes on in the way that a checkpoint names, unless TREK_F32_PRODUCTS is set. The log says if tiles are named and the machine
 * has none. A collective; comm NULL: of this process alone. name NULL: nothing changes. */
trek_status trek_job_products_resume(trek_comm *comm, const char *name);

#endif
