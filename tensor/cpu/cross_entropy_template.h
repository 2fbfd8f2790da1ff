/* SPDX-License-Identifier: Apache-2.0 */
/* Cross entropy over rows of logits for one real type. Included by cross_entropy.c. */
#include "tensor/cpu/vector.h"

/* Largest element; NaN if there is one, so that it reaches the loss. */
static T TREK_R(row_max)(const T *x, int64_t n)
{
    T top[16], most = x[0];
    int64_t j = 0;
    for (int l = 0; l < 16; l++)
        top[l] = x[0];
    for (; j + 16 <= n; j += 16)
        for (int l = 0; l < 16; l++)
            top[l] = x[j + l] > top[l] || x[j + l] != x[j + l] ? x[j + l] : top[l];
    for (int l = 0; l < 16; l++)
        most = top[l] > most || top[l] != top[l] ? top[l] : most;
    for (; j < n; j++)
        most = x[j] > most || x[j] != x[j] ? x[j] : most;
    return most;
}

/* Sum of e^(x - top), in 16 sums side by side. */
static T TREK_R(row_exp_sum)(const T *x, int64_t n, T top)
{
    T sums[16] = { 0 };
    int64_t j = 0;
    for (; j + 16 <= n; j += 16)
        for (int l = 0; l < 16; l++)
            sums[l] += TREK_R(exponential)(x[j + l] - top);
    T rest[16];
    for (int l = 0; l < 16; l++)
        rest[l] = j + l < n ? x[j + l] : top;
    for (int l = 0; l < 16; l++)
        rest[l] = TREK_R(exponential)(rest[l] - top);
    for (int l = 0; l < 16; l++)
        sums[l] += j + l < n ? rest[l] : 0;
    for (int half = 8; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            sums[l] += sums[l + half];
    return sums[0];
}

static void TREK_R(loss_rows)(void *arg, int64_t begin, int64_t end)
{
    const loss_job *job = arg;
    const int64_t n = job->classes;
    const double *weight = job->weight;
    for (int64_t row = begin; row < end; row++) {
        const T *x = (const T *)job->logits + row * n;
        int64_t label = trek_cpu_integer(job->labels, row);
        T top = TREK_R(row_max)(x, n);
        T shift = top - top == 0 ? top : 0; /* rows of -infinity, or with +infinity or NaN, give NaN below */
        double lse = (double)shift + log((double)TREK_R(row_exp_sum)(x, n, shift));
        ((T *)job->lse)[row] = (T)lse;
        job->losses[row] = 0;
        if (label == job->ignore)
            continue;
        double own = weight ? weight[label] : 1, loss = own * (lse - (double)x[label]);
        if (job->smoothing > 0) {
            double all = 0;
            for (int64_t j = 0; j < n; j++)
                all += (weight ? weight[j] : 1) * (lse - (double)x[j]);
            loss = (1 - job->smoothing) * loss + job->smoothing / (double)n * all;
        }
        job->losses[row] = loss;
    }
}

/* dx = g (own (p - at label) (1 - s) + s / n (p W - w)), with own the label's weight, W the sum of all. */
static void TREK_R(grad_rows)(void *arg, int64_t begin, int64_t end)
{
    const loss_job *job = arg;
    const int64_t n = job->classes;
    for (int64_t row = begin; row < end; row++) {
        const T *x = (const T *)job->logits + row * n;
        T *dx = (T *)job->grad_logits + row * n;
        int64_t label = trek_cpu_integer(job->labels, row);
        if (label == job->ignore) {
            memset(dx, 0, (size_t)n * sizeof(T));
            continue;
        }
        double grad = job->grads ? job->grads[row] : job->grad, own = job->weight ? job->weight[label] : 1;
        double each = job->smoothing / (double)n;
        T slope = (T)(grad * ((1 - job->smoothing) * own + each * job->weight_sum)), lse = ((const T *)job->lse)[row];
        for (int64_t j = 0; j < n; j++)
            dx[j] = slope * TREK_R(exponential)(x[j] - lse);
        dx[label] -= (T)(grad * (1 - job->smoothing) * own);
        if (job->smoothing > 0 && job->weight)
            for (int64_t j = 0; j < n; j++)
                dx[j] -= (T)(grad * each * job->weight[j]);
        else if (job->smoothing > 0)
            for (int64_t j = 0; j < n; j++)
                dx[j] -= (T)(grad * each);
    }
}
