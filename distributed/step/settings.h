/* SPDX-License-Identifier: Apache-2.0 */
/* What has to be set alike in all processes of a job: options of setup, what setters change later, the data. Internal. */
#ifndef TREK_DISTRIBUTED_STEP_SETTINGS_H
#define TREK_DISTRIBUTED_STEP_SETTINGS_H

#include "distributed/step/stepper_ranks.h"
#include "nn/text.h"

struct trek_trainer_opts;

/* What a graph has besides modules, parameters and buffers, a line each of text to be freed; NULL on failure. */
char *trek_ranks_describe_graph(trek_graph *graph);
/* A number that is another one when an option is: what each step compares. */
uint64_t trek_settings_digest(const ranks_stepper *s);
/* The same as lines, for trek_agree. */
void trek_settings_describe(const ranks_stepper *s, trek_text *text);
/* Once, at the end of trek_trainer_setup: also its options, the steps done, which parameters train, the graph's data. */
void trek_settings_describe_setup(const ranks_stepper *s, const struct trek_trainer_opts *opts, trek_text *text);

#endif
