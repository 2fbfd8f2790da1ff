/* SPDX-License-Identifier: Apache-2.0 */
/* The settings that must be equal in all processes of a job: options of setup, what setters change later, and the
 * data. */
#ifndef TREK_DISTRIBUTED_TEAM_SETTINGS_H
#define TREK_DISTRIBUTED_TEAM_SETTINGS_H

#include "distributed/team/team.h"
#include "distributed/trainer.h"
#include "nn/text.h"

struct trek_trainer_opts;

/* Returns a number that changes with every option. Each step compares it. */
uint64_t trek_settings_digest(const trek_team *team);
/* Writes the same settings as lines, for trek_agree. */
void trek_settings_describe(const trek_team *team, trek_text *text);
/* Writes further lines once, at the end of trek_trainer_setup: its options, which parameters train, the graph's data, and the
 * steps done. The first function leaves out the steps. */
void trek_settings_describe_program(const trek_team *team, const struct trek_trainer_opts *opts, trek_text *text);
void trek_settings_describe_setup(const trek_team *team, const struct trek_trainer_opts *opts, trek_text *text);

#endif
