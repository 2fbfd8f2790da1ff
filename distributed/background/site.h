/* SPDX-License-Identifier: Apache-2.0 */
/* A process's ranks as one unit of an average. */
#ifndef TREK_DISTRIBUTED_BACKGROUND_SITE_H
#define TREK_DISTRIBUTED_BACKGROUND_SITE_H

#include "distributed/step/step.h"

/* Makes the site of a step that is complete except for its workload, which it makes, too. */
trek_status trek_site_make(trek_step *s, const trek_workload_opts *opts);
void trek_site_end(trek_step *s);

#endif
