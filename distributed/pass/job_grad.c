/* SPDX-License-Identifier: Apache-2.0 */
/* trek_graph_grad with several processes. Each process computes the gradients of its own loss, with the seed that
 * trek_graph_backward would give it, and what the processes have of a parameter's gradient is added up by an op on the
 * caller's tape. Its backward adds up the gradients that arrive in all processes, so it is the same op; gradients of
 * gradients, and the backward of a loss that uses them, are then those of one device. */
#include "autograd/function.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "distributed/job/agreement.h"
#include "distributed/pass/gathered.h"
#include "distributed/pass/split_pass.h"
#include "distributed/reduce/overlap.h"
#include "distributed/team/step.h"
#include "graph/batch_run.h"
#include "tensor/rank_context.h"

/* --- a sum over processes as an op ------------------------------------------------------------ */

static void job_sum_free(void *data)
{
    trek_comm *comm = data;
    trek_comm_free(&comm);
}

/* The inputs are what this process has, and the parameter that it is the gradient of: by this edge every process
 * records the op, also one whose own part has no history. */
static trek_status job_sum_forward(trek_function_context *context, trek_var *const *inputs, int n_inputs, trek_var **outputs,
                                   int n_outputs)
{
    (void)n_inputs, (void)n_outputs;
    outputs[0] = trek_clone(trek_contiguous(inputs[0]));
    return outputs[0] ? trek_comm_all_reduce(trek_function_data(context), outputs[0]->data, TREK_REDUCTION_SUM)
        : trek_error_status();
}

static trek_var *job_sum(trek_comm *comm, trek_var *part, trek_var *param);

static trek_status job_sum_backward(trek_function_context *context, trek_var *const *grads, int n_grads, trek_var **input_grads,
                                    int n_inputs)
{
    (void)n_grads, (void)n_inputs;
    input_grads[0] = job_sum(trek_function_data(context), grads[0], grads[0]);
    return trek_error_status();
}

static const trek_function job_sum_function = { "sum_over_processes", job_sum_forward, job_sum_backward, job_sum_free };

static trek_var *job_sum(trek_comm *comm, trek_var *part, trek_var *param)
{
    if (!part || !trek_comm_retain(comm))
        return NULL;
    return trek_function_apply_one(&job_sum_function, comm, (trek_var *[]){ part, param }, 2);
}

/* --- the call ----------------------------------------------------------------------------------- */

typedef struct grad_call {
    trek_var *loss, *const *inputs, **grads;
    const trek_backward_opts *opts;
    int n;
    double factor;              /* this process's share of the weights */
} grad_call;

/* Computes what this process has of the gradients. */
static trek_status own_part(trek_step *s, void *arg)
{
    (void)s;
    const grad_call *c = arg;
    const trek_tensor *of = c->loss->data;
    trek_tensor *factor = trek_tensor_full(trek_tensor_shape(of), c->factor, (trek_dtype)of->dtype, of->device);
    trek_var *seed = factor ? trek_var_from(factor) : NULL;
    if (!seed)
        return trek_error_status();
    bool before = trek_rank_here.joins_grads;
    trek_rank_here.joins_grads = true;
    trek_status status = trek_grad(&c->loss, 1, c->inputs, c->n, &seed, c->opts, c->grads);
    trek_rank_here.joins_grads = before;
    return status;
}

static bool is_parameter(const trek_step *s, const trek_var *var)
{
    const trek_replica *model = s->team->replicas[0].model;
    for (int k = 0; k < model->n_params; k++)
        if (model->params[k] == var)
            return true;
    return false;
}

/* Adds up one parameter's gradient. `reached`: in how many processes there is one. */
static trek_var *join_one(const trek_step *s, trek_var *param, trek_var *part, double reached)
{
    if (reached == 0)
        return NULL;
    trek_tensor *zeros = part ? NULL
        : trek_tensor_zeros(trek_var_shape(param), trek_var_dtype(param), trek_var_device(param));
    return job_sum(s->job.comm, part ? part : zeros ? trek_var_from(zeros) : NULL, param);
}

/* Adds up the gradients of the parameters among the inputs. */
static trek_status join_parts(const trek_step *s, const grad_call *c)
{
    trek_tensor *counts = trek_tensor_zeros(trek_dims(c->n + 1), TREK_F64, trek_cpu(0));
    trek_status status = counts ? TREK_OK : trek_error_status();
    double *reached = counts ? trek_tensor_data(counts) : NULL;
    for (int k = 0; k < c->n && reached; k++)
        reached[k] = c->grads[k] && is_parameter(s, c->inputs[k]);
    if (status == TREK_OK)
        status = trek_comm_all_reduce(s->job.comm, counts, TREK_REDUCTION_SUM);
    for (int k = 0; k < c->n && status == TREK_OK; k++)
        if (is_parameter(s, c->inputs[k]) && !(c->grads[k] = join_one(s, c->inputs[k], c->grads[k], reached[k])))
            status = trek_error_status();
    trek_tensor_release(counts);
    return status;
}

static trek_status check(const trek_step *s, trek_var *loss, trek_var *const *inputs, int n, trek_var **grads)
{
    char text[TREK_SHAPE_TEXT];
    if (trek_error_status() != TREK_OK)
        return trek_error_status();
    if (s->averaging)
        return trek_fail(TREK_ERR_STATE, "graph_grad: the parameters are averaged; gradients of all processes need .average off");
    if (s->records)
        return trek_fail(TREK_ERR_UNSUPPORTED, "graph_grad: a step that is captured; not possible with several processes");
    if (trek_var_numel(loss) != 1)
        return trek_fail(TREK_ERR_SHAPE, "graph_grad: loss: %s; must be a scalar",
                         trek_shape_format(trek_var_shape(loss), text, sizeof text));
    if (n < 0 || (n > 0 && (!inputs || !grads)))
        return n < 0 ? trek_fail(TREK_ERR_ARGUMENT, "graph_grad: n: %d; must not be negative", n)
                     : trek_fail_missing("graph_grad", inputs ? "grads" : "inputs");
    for (int k = 0; k < n; k++)
        if (!inputs[k])
            return trek_fail_missing("graph_grad", "input");
    return TREK_OK;
}

/* Sets the share of this process in the weights of all, which meet here: *own becomes its weight. */
static trek_status agree_on_weights(trek_step *s, grad_call *c, trek_status status, double *own)
{
    *own = status == TREK_OK ? trek_graph_loss_weight(s->team->graph, c->loss, -1) : 0;
    status = trek_agree(s->job.comm, trek_error_status(), "graph_grad: the processes differ", NULL);
    double total = *own;
    if (status == TREK_OK)
        status = trek_comm_all_reduce_scalar(s->job.comm, &total, TREK_REDUCTION_SUM);
    c->factor = total > 0 ? *own / total : 0;
    return status;
}

trek_status trek_ranks_grad(trek_step *s, trek_var *loss, trek_var *const *inputs, int n, const trek_backward_opts *opts,
                            trek_var **grads)
{
    if (trek_ranks_rank_here(s->team->ranks) >= 0)
        return trek_fail(TREK_ERR_STATE, "graph_grad: called in a rank's loss; only between passes can ranks be joined");
    if (!trek_job_has_others(&s->job))
        return trek_grad(&loss, 1, inputs, n, NULL, opts, grads);
    trek_job_say(&s->job, "grad", true);
    bool recorded = opts && opts->create_graph;
    double own;
    grad_call call = { .loss = loss, .inputs = inputs, .grads = grads, .n = n, .opts = opts };
    trek_status status = agree_on_weights(s, &call, check(s, loss, inputs, n, grads), &own);
    for (int k = 0; k < n && status == TREK_OK; k++)
        grads[k] = NULL;
    /* its part is 0, whatever the loss is; but others may wait for its sums */
    bool weightless = own == 0 && !trek_team_meets(s->team);
    if (status == TREK_OK && (!weightless || trek_overlap_yields(s, false)))
        status = s->team->local_ranks == 1 ? trek_ranks_alone(s, 0, true, own_part, &call) : own_part(s, &call);
    for (int k = 0; k < n && weightless && status == TREK_OK; k++)
        grads[k] = NULL;
    status = trek_agree(s->job.comm, status, "graph_grad: the processes differ", NULL);
    if (status != TREK_OK)
        return status;
    trek_overlap_yields(s, recorded);
    trek_grad_mode mode = trek_grad_mode_here;
    trek_grad_mode_here.no_grad_depth = recorded ? 0 : 1;
    status = join_parts(s, &call);
    trek_grad_mode_here.no_grad_depth = mode.no_grad_depth;
    return status;
}
