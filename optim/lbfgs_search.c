/* SPDX-License-Identifier: Apache-2.0 */
/* The line search of L-BFGS: PyTorch's, which follows minFunc. */
#include <math.h>

#include "optim/lbfgs_internal.h"

static double limited(double value, double low, double high)
{
    value = low > value ? low : value;
    return high < value ? high : value;
}

/* Returns the minimum of the cubic through two points. */
static double interpolate(const trek_lbfgs_point *a, const trek_lbfgs_point *b, double low, double high)
{
    double d1 = a->slope + b->slope - 3 * (a->loss - b->loss) / (a->t - b->t), square = d1 * d1 - a->slope * b->slope;
    if (!(square >= 0))
        return (low + high) / 2;
    double d2 = sqrt(square);
    double at = a->t <= b->t ? b->t - (b->t - a->t) * ((b->slope + d2 - d1) / (b->slope - a->slope + 2 * d2))
                             : a->t - (a->t - b->t) * ((a->slope + d2 - d1) / (a->slope - b->slope + 2 * d2));
    return limited(at, low, high);
}

static trek_lbfgs_point copy(const trek_lbfgs_point *p)
{
    trek_lbfgs_point c = *p;
    trek_tensor_retain(c.grad);
    return c;
}

static void move(trek_lbfgs_point *to, trek_lbfgs_point from)
{
    trek_tensor_release(to->grad);
    *to = from;
}

typedef struct search {
    trek_lbfgs_line *line;
    const trek_lbfgs_point *start;
    trek_lbfgs_point ends[2];
    int low, iterations, most;
    bool done, little; /* there was little progress the last time */
} search;

static bool too_high(const search *s, const trek_lbfgs_point *p)
{
    return p->loss > s->start->loss + 1e-4 * p->t * s->start->slope;
}

static bool flat_enough(const search *s, const trek_lbfgs_point *p) { return fabs(p->slope) <= -0.9 * s->start->slope; }

/* Moves outwards until a minimum lies between two points, which `ends` takes over. */
static void bracket(search *s, double t)
{
    trek_lbfgs_point before = copy(s->start), now = s->line->evaluate(s->line, t);
    for (; s->iterations < s->most && trek_error_status() == TREK_OK; s->iterations++) {
        s->done = !too_high(s, &now) && !(s->iterations > 1 && now.loss >= before.loss) && flat_enough(s, &now);
        if (s->done || too_high(s, &now) || (s->iterations > 1 && now.loss >= before.loss) || now.slope >= 0)
            break;
        double next = interpolate(&before, &now, now.t + 0.01 * (now.t - before.t), now.t * 10);
        move(&before, now);
        now = s->line->evaluate(s->line, next);
    }
    if (s->iterations == s->most)
        move(&before, copy(s->start));
    s->ends[0] = s->done ? copy(&now) : copy(&before);
    s->ends[1] = now;
    trek_tensor_release(before.grad);
}

/* Returns the next point between the ends, away from both if the last one gained little. */
static double between(search *s)
{
    double most = fmax(s->ends[0].t, s->ends[1].t), least = fmin(s->ends[0].t, s->ends[1].t), margin = 0.1 * (most - least);
    double t = interpolate(&s->ends[0], &s->ends[1], least, most);
    if (!(fmin(most - t, t - least) < margin)) {
        s->little = false;
        return t;
    }
    if (!s->little && t < most && t > least) {
        s->little = true;
        return t;
    }
    s->little = false;
    return fabs(t - most) < fabs(t - least) ? most - margin : least + margin;
}

static void narrow(search *s)
{
    int low = s->low, high = 1 - low;
    trek_lbfgs_point now = s->line->evaluate(s->line, between(s));
    s->iterations++;
    if (too_high(s, &now) || now.loss >= s->ends[low].loss) {
        move(&s->ends[high], now);
        s->low = s->ends[0].loss <= s->ends[1].loss ? 0 : 1;
        return;
    }
    if (flat_enough(s, &now))
        s->done = true;
    else if (now.slope * (s->ends[high].t - s->ends[low].t) >= 0)
        move(&s->ends[high], copy(&s->ends[low]));
    move(&s->ends[low], now);
}

trek_lbfgs_point trek_lbfgs_search(trek_lbfgs_line *line, trek_lbfgs_point start, double t, int most)
{
    search s = { .line = line, .start = &start, .most = most };
    double size = line->largest, least = line->lbfgs->opts.tolerance_change;
    bracket(&s, t);
    s.low = s.ends[0].loss <= s.ends[1].loss ? 0 : 1;
    while (!s.done && s.iterations < most && trek_error_status() == TREK_OK && !(fabs(s.ends[1].t - s.ends[0].t) * size < least))
        narrow(&s);
    trek_tensor_release(s.ends[1 - s.low].grad);
    return s.ends[s.low];
}
