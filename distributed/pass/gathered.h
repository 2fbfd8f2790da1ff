/* SPDX-License-Identifier: Apache-2.0 */
/* The gathered way: a loop calls forward and backward itself. The forward is split over the ranks and joined. */
#ifndef TREK_DISTRIBUTED_PASS_GATHERED_H
#define TREK_DISTRIBUTED_PASS_GATHERED_H

#include "distributed/team/team.h"

typedef struct trek_step trek_step;

trek_var *trek_ranks_forward(trek_step *s, trek_var *const *inputs, int n);
trek_status trek_ranks_backward(trek_step *s, trek_var *loss, double weight);
/* For trek_graph_grad (job_grad.c). */
trek_status trek_ranks_grad(trek_step *s, trek_var *loss, trek_var *const *inputs, int n, const trek_backward_opts *opts,
                            trek_var **grads);

/* Calls fn on the only rank of the process; its layers may make sums with those of other processes. units: of work,
 * for its stopwatch. goes_back: it goes backward through what the run before made. */
typedef trek_status (*trek_alone_fn)(trek_step *s, void *arg);
trek_status trek_ranks_alone(trek_step *s, int64_t units, bool goes_back, trek_alone_fn fn, void *arg);

#endif
