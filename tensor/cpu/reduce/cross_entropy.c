/* SPDX-License-Identifier: Apache-2.0 */
/* Cross entropy of logits and labels, with class weights, label smoothing (Szegedy and others 2016) and ignored rows,
 * and its gradient; both need only the rows' logsumexp besides the logits. */
#include "tensor/cpu/reduce/cross_entropy_rows.h"

/* Reads the class weights into `numbers` (one for each class). */
static void job_init(loss_job *job, const trek_op_call *call, const trek_tensor *logits, const trek_tensor *labels,
                     const trek_tensor *weight, double *numbers)
{
    job->logits = logits->data;
    job->labels = labels;
    job->classes = logits->sizes[1];
    job->ignore = call->attrs.i[0];
    job->smoothing = call->attrs.f[0];
    job->weight_sum = (double)job->classes;
    if (!weight)
        return;
    trek_cpu_read_vector(weight, numbers);
    job->weight = numbers;
    job->weight_sum = 0;
    for (int64_t c = 0; c < job->classes; c++)
        job->weight_sum += numbers[c];
}

static int64_t row_grain(const loss_job *job) { return 8192 / (job->classes + 1) + 1; }

static void write_scalar(trek_tensor *t, double value) { trek_cpu_write_vector(t, &value); }

static trek_status forward_dense(const trek_op_call *call)
{
    const trek_tensor *logits = call->inputs[0], *labels = call->inputs[1];
    int64_t rows = logits->sizes[0];
    trek_status status = check_labels(call, labels, logits->sizes[1]);
    if (status != TREK_OK)
        return status;
    double *numbers = trek_block_alloc((size_t)(rows + logits->sizes[1] + 1) * sizeof *numbers);
    if (!numbers)
        return TREK_ERR_MEMORY;
    loss_job job = { .lse = (double *)(void *)call->outputs[1]->data, .losses = numbers };
    job_init(&job, call, logits, labels, call->n_inputs > 2 ? call->inputs[2] : NULL, numbers + rows);
    trek_parallel(rows, row_grain(&job), logits->dtype == TREK_F64 ? loss_rows_f64 : loss_rows_f32, &job);
    double total = 0, loss = 0;
    for (int64_t row = 0; row < rows; row++) {
        int64_t label = trek_cpu_integer(labels, row);
        if (label != job.ignore)
            total += job.weight ? job.weight[label] : 1;
        loss += job.losses[row];
    }
    if (call->attrs.i[1] == TREK_REDUCTION_NONE)
        trek_cpu_write_vector(call->outputs[0], job.losses);
    else if (call->attrs.i[1] == TREK_REDUCTION_SUM)
        write_scalar(call->outputs[0], loss);
    else
        write_scalar(call->outputs[0], total != 0 ? loss / total : 0);
    write_scalar(call->outputs[2], total);
    trek_block_free(numbers);
    return TREK_OK;
}

static trek_status backward_dense(const trek_op_call *call)
{
    const trek_tensor *grad = call->inputs[0], *logits = call->inputs[1], *labels = call->inputs[2];
    int64_t rows = logits->sizes[0];
    trek_status status = check_labels(call, labels, logits->sizes[1]);
    if (status != TREK_OK)
        return status;
    double *numbers = trek_block_alloc((size_t)(rows + logits->sizes[1] + 1) * sizeof *numbers);
    if (!numbers)
        return TREK_ERR_MEMORY;
    loss_job job = { .lse = (double *)(void *)call->inputs[4]->data, .grad_logits = call->outputs[0]->data };
    job_init(&job, call, logits, labels, call->inputs[3], numbers + rows);
    if (call->attrs.i[1] == TREK_REDUCTION_NONE) {
        trek_cpu_read_vector(grad, numbers);
        job.grads = numbers;
    } else {
        double total;
        trek_cpu_read_vector(grad, &job.grad);
        trek_cpu_read_vector(call->inputs[5], &total);
        if (call->attrs.i[1] == TREK_REDUCTION_MEAN)
            job.grad = total != 0 ? job.grad / total : 0;
    }
    trek_parallel(rows, row_grain(&job), logits->dtype == TREK_F64 ? grad_rows_f64 : grad_rows_f32, &job);
    trek_block_free(numbers);
    return TREK_OK;
}

static trek_status cross_entropy(const trek_op_call *call) { return trek_cpu_dense(call, 3, forward_dense); }
static trek_status cross_entropy_backward(const trek_op_call *call) { return trek_cpu_dense(call, 22, backward_dense); }

void TREK_ISA_NAME(trek_cpu_register_cross_entropy)(trek_backend *b)
{
    for (int dtype = 0; dtype < TREK_DTYPE_COUNT; dtype++)
        if (TREK_FLOATS >> dtype & 1) {
            b->kernels[TREK_OP_cross_entropy][dtype] = cross_entropy;
            b->kernels[TREK_OP_cross_entropy_backward][dtype] = cross_entropy_backward;
        }
}
