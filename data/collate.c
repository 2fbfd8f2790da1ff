/* SPDX-License-Identifier: Apache-2.0 */
/* Batches assembled from single samples. */
#include "data/collate.h"

#include <inttypes.h>
#include <string.h>

#include "data/dataset_internal.h"
#include "tensor/option_internal.h"
#include "tensor/tensor_internal.h"

/* -- single samples --------------------------------------------------------------------------- */

typedef struct samples {
    int64_t n;
    int n_fields;
    trek_tensor ***rows; /* [n][n_fields] batches of one */
} samples;

static void samples_clear(samples *s)
{
    for (int64_t i = 0; s->rows && i < s->n; i++) {
        if (s->rows[i])
            trek_tensors_clear(s->rows[i], s->n_fields);
        trek_free(s->rows[i]);
    }
    trek_free(s->rows);
    s->rows = NULL;
}

static trek_status samples_new(samples *s, int64_t n, int n_fields)
{
    *s = (samples){ .n = n, .n_fields = n_fields, .rows = trek_calloc((size_t)n, sizeof(*s->rows)) };
    for (int64_t i = 0; s->rows && i < n; i++)
        if (!(s->rows[i] = trek_tensors_new(n_fields)))
            return TREK_ERR_MEMORY;
    return s->rows ? TREK_OK : TREK_ERR_MEMORY;
}

/* Fetches one sample at a time. The inner dataset learns about the whole batch if it depends on it. */
static trek_status samples_fetch(samples *s, trek_dataset *inner, const trek_fetch *fetch, const int64_t *indices, int64_t first)
{
    trek_fetch one = *fetch;
    one.n = 1;
    trek_status status = TREK_OK;
    for (int64_t i = 0; i < s->n && status == TREK_OK; i++) {
        one.indices = indices + i;
        one.batch_first = first + i;
        status = trek_dataset_fetch(inner, &one, s->rows[i]);
        for (int k = 0; k < s->n_fields && status == TREK_OK; k++)
            status = trek_tensor_settle(&s->rows[i][k]);
    }
    return status;
}

/* -- padding -------------------------------------------------------------------------------------- */

typedef struct rule {
    bool pads;
    double value;
    int64_t multiple_of, at_least;
} rule;

typedef struct padded {
    trek_around around;
    rule *rules;      /* [inner's fields] */
    int64_t *lengths; /* [samples]; NULL if lengths are measured */
    int first;        /* the first padded field */
    int mask, length; /* positions of those fields; -1 for none */
} padded;

/* The longest sizes so far, of one field. */
typedef struct longest {
    int ndim; /* including the batch dimension; 0 if there is nothing yet */
    int64_t sizes[TREK_MAX_DIMS];
    trek_dtype dtype;
} longest;

static trek_status measure(const padded *p, int field, longest *most, const trek_tensor *x)
{
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
    if (most->ndim == 0)
        *most = (longest){ .ndim = x->ndim, .dtype = (trek_dtype)x->dtype };
    if (most->ndim != x->ndim || most->dtype != (trek_dtype)x->dtype)
        return trek_fail(TREK_ERR_SHAPE,
            "dataset pad: samples of \"%s\" have shapes such as %s %s and %s %s; only the first dimension may differ",
                         p->around.inner->fields[field], trek_shape_format(trek_shape_make(most->sizes, most->ndim), a, sizeof a),
                         trek_dtype_name(most->dtype), trek_tensor_shape_text(x, b), trek_dtype_name((trek_dtype)x->dtype));
    for (int d = 1; d < x->ndim; d++)
        most->sizes[d] = x->sizes[d] > most->sizes[d] ? x->sizes[d] : most->sizes[d];
    return TREK_OK;
}

static trek_status measure_all(const padded *p, const samples *s, longest *most)
{
    trek_status status = TREK_OK;
    for (int64_t i = 0; i < s->n; i++)
        for (int k = 0; k < s->n_fields && status == TREK_OK; k++)
            status = p->rules[k].pads ? measure(p, k, &most[k], s->rows[i][k]) : TREK_OK;
    return status;
}

/* Measures the samples of the batch that belong to other ranks, one after another. */
static trek_status measure_others(const padded *p, const trek_fetch *fetch, longest *most)
{
    trek_dataset *inner = p->around.inner;
    trek_status status = TREK_OK;
    for (int64_t i = 0; i < fetch->n_batch && status == TREK_OK; i++) {
        if (i >= fetch->batch_first && i < fetch->batch_first + fetch->n)
            continue;
        samples one;
        status = samples_new(&one, 1, inner->n_fields);
        if (status == TREK_OK)
            status = samples_fetch(&one, inner, fetch, fetch->batch + i, i);
        if (status == TREK_OK)
            status = measure_all(p, &one, most);
        samples_clear(&one);
    }
    return status;
}

/* The same with the list of lengths. */
static trek_status look_up(const padded *p, const trek_fetch *fetch, const samples *s, longest *most)
{
    const int64_t *list = fetch->batch ? fetch->batch : fetch->indices;
    int64_t n = fetch->batch ? fetch->n_batch : fetch->n, first = fetch->batch ? fetch->batch_first : 0, top = 0;
    for (int64_t i = 0; i < n; i++)
        top = p->lengths[list[i]] > top ? p->lengths[list[i]] : top;
    for (int k = 0; k < s->n_fields; k++) {
        if (!p->rules[k].pads || most[k].ndim < 2)
            continue;
        for (int64_t i = 0; i < s->n; i++)
            if (s->rows[i][k]->sizes[1] > p->lengths[list[first + i]])
                return trek_fail(
                    TREK_ERR_ARGUMENT,
                    "dataset pad: .lengths: \"%s\" of sample %" PRId64 " has %" PRId64 " rows; .lengths says %" PRId64,
                    p->around.inner->fields[k], list[first + i], s->rows[i][k]->sizes[1], p->lengths[list[first + i]]);
        most[k].sizes[1] = top;
    }
    return TREK_OK;
}

/* Copies a sample to the beginning of each dimension of row i. */
static void put_corner(trek_tensor *to, int64_t i, const trek_tensor *from)
{
    int last = from->ndim - 1;
    size_t width = trek_dtype_size((trek_dtype)from->dtype);
    int64_t run = last > 0 ? from->sizes[last] : 1, rows = from->numel > 0 ? from->numel / run : 0;
    for (int64_t row = 0; row < rows; row++) {
        int64_t at = i * to->strides[0], rest = row;
        for (int d = last - 1; d > 0; d--) {
            at += rest % from->sizes[d] * to->strides[d];
            rest /= from->sizes[d];
        }
        memcpy(to->data + (size_t)at * width, from->data + (size_t)(row * run) * width, (size_t)run * width);
    }
}

static trek_status pad_field(const padded *p, const samples *s, int k, longest *most, trek_tensor **out)
{
    if (most->ndim > 1) {
        const rule *r = &p->rules[k];
        int64_t size = most->sizes[1] > r->at_least ? most->sizes[1] : r->at_least;
        most->sizes[1] = (size + r->multiple_of - 1) / r->multiple_of * r->multiple_of;
    }
    most->sizes[0] = s->n;
    *out = trek_tensor_full(trek_shape_make(most->sizes, most->ndim), p->rules[k].value, most->dtype, trek_cpu(0));
    for (int64_t i = 0; *out && i < s->n; i++)
        put_corner(*out, i, s->rows[i][k]);
    return *out ? TREK_OK : trek_status_or(TREK_ERR_MEMORY);
}

static trek_status add_measures(const padded *p, const samples *s, const longest *most, trek_tensor **out)
{
    int64_t width = most->ndim > 1 ? most->sizes[1] : 1;
    if (p->mask >= 0)
        out[p->mask] = trek_tensor_full(trek_dims(s->n, width), 0, TREK_BOOL, trek_cpu(0));
    if (p->length >= 0)
        out[p->length] = trek_tensor_full(trek_dims(s->n), 0, TREK_I64, trek_cpu(0));
    if ((p->mask >= 0 && !out[p->mask]) || (p->length >= 0 && !out[p->length]))
        return trek_status_or(TREK_ERR_MEMORY);
    for (int64_t i = 0; i < s->n; i++) {
        const trek_tensor *x = s->rows[i][p->first];
        int64_t own = x->ndim > 1 ? x->sizes[1] : 1;
        if (p->mask >= 0)
            memset((char *)trek_tensor_data(out[p->mask]) + i * width, 1, (size_t)own);
        if (p->length >= 0)
            ((int64_t *)trek_tensor_data(out[p->length]))[i] = own;
    }
    return TREK_OK;
}

/* A NULL fetch stands for a stream, all of whose samples are there. */
static trek_status assemble(const padded *p, const trek_fetch *fetch, const samples *s, trek_tensor **out)
{
    longest *most = trek_calloc((size_t)s->n_fields, sizeof(*most));
    if (!most)
        return TREK_ERR_MEMORY;
    trek_status status = measure_all(p, s, most);
    if (status == TREK_OK && p->lengths)
        status = look_up(p, fetch, s, most);
    else if (status == TREK_OK && fetch && fetch->batch)
        status = measure_others(p, fetch, most);
    for (int k = 0; k < s->n_fields && status == TREK_OK; k++) {
        if (p->rules[k].pads)
            status = pad_field(p, s, k, &most[k], &out[k]);
        for (int64_t i = 0; i < s->n && !p->rules[k].pads && status == TREK_OK; i++)
            status = trek_rows_put(&p->around.base, k, &out[k], s->n, i, s->rows[i][k], 0);
    }
    if (status == TREK_OK)
        status = add_measures(p, s, &most[p->first], out);
    trek_free(most);
    return status;
}

static trek_status pad_get(trek_dataset *self, const trek_fetch *fetch, trek_tensor **out)
{
    const padded *p = (const padded *)self;
    samples s;
    trek_status status = samples_new(&s, fetch->n, p->around.inner->n_fields);
    if (status == TREK_OK)
        status = samples_fetch(&s, p->around.inner, fetch, fetch->indices, fetch->batch_first);
    if (status == TREK_OK)
        status = assemble(p, fetch, &s, out);
    samples_clear(&s);
    return status;
}

static trek_status pad_next(trek_dataset *self, void *reading, int64_t n, trek_tensor **out, int64_t *got)
{
    const padded *p = (const padded *)self;
    samples s;
    trek_status status = samples_new(&s, n, p->around.inner->n_fields);
    int64_t have = 0, one = 1;
    for (; have < n && status == TREK_OK && one == 1; have += one)
        status = trek_stream_next(reading, 1, s.rows[have], &one);
    samples some = s;
    some.n = have;
    if (status == TREK_OK && have > 0)
        status = assemble(p, NULL, &some, out);
    *got = status == TREK_OK ? have : 0;
    samples_clear(&s);
    return status;
}

static void pad_free(trek_dataset *self)
{
    padded *p = (padded *)self;
    trek_free(p->rules);
    trek_free(p->lengths);
    trek_around_free(self);
}

static const trek_stream_class pad_stream = {
    .open = trek_around_open, .next = pad_next, .skip = trek_around_skip, .close = trek_around_close,
};

static const trek_dataset_class pad_class = {
    .name = "pad", .size = sizeof(padded), .length = trek_around_length, .get = pad_get, .free = pad_free,
    .stream = &pad_stream, .needs_batch = true,
};

/* Makes the rule for the k-th of the options' fields. */
static trek_status rule_of(const trek_pad_opts *o, int k, rule *r)
{
    int64_t multiple = o->multiples ? o->multiples[k] : o->multiple_of, least = o->leasts ? o->leasts[k] : o->at_least;
    *r = (rule){ true, trek_option(o->values ? o->values[k] : o->value, 0), multiple ? multiple : 1, least };
    if (multiple >= 0 && least >= 0)
        return TREK_OK;
    return trek_fail(TREK_ERR_ARGUMENT, "dataset_pad: .multiple_of: %" PRId64 ", .at_least: %" PRId64 "; must be 0 or more",
                     multiple, least);
}

static trek_status choose_fields(padded *p, const trek_pad_opts *o)
{
    trek_dataset *inner = p->around.inner;
    int n = inner->n_fields;
    p->rules = trek_calloc((size_t)n, sizeof(*p->rules));
    if (!p->rules)
        return TREK_ERR_MEMORY;
    if (o->fields ? o->n_fields < 1 : o->values || o->multiples || o->leasts)
        return trek_fail(TREK_ERR_ARGUMENT, "dataset_pad: .fields: %s",
                         o->fields ? "it names no fields; must name at least one"
                                   : "NULL, but a list for each field is set; lists need it");
    trek_status status = TREK_OK;
    for (int k = 0; k < (o->fields ? o->n_fields : n) && status == TREK_OK; k++) {
        int place = o->fields ? trek_dataset_field(inner, o->fields[k]) : k;
        p->first = k == 0 ? place : p->first;
        status = place < 0 ? trek_status_or(TREK_ERR_ARGUMENT) : rule_of(o, k, &p->rules[place]);
    }
    return status;
}

/* Lists inner's fields and the additional ones. */
static trek_status name_fields(padded *p, const trek_pad_opts *o)
{
    const trek_dataset *inner = p->around.inner;
    int n = inner->n_fields;
    const char **names = trek_calloc((size_t)n + 2, sizeof(*names));
    if (!names)
        return TREK_ERR_MEMORY;
    memcpy(names, inner->fields, (size_t)n * sizeof(*names));
    p->mask = o->mask ? n : -1;
    if (o->mask)
        names[n++] = o->mask;
    p->length = o->length ? n : -1;
    if (o->length)
        names[n++] = o->length;
    trek_status status = trek_dataset_set_fields(&p->around.base, names, n);
    trek_free(names);
    return status;
}

static trek_status pad_fill(padded *p, const trek_pad_opts *o)
{
    const trek_dataset *inner = p->around.inner;
    if (o->lengths && trek_dataset_is_stream(inner))
        return trek_fail(TREK_ERR_ARGUMENT,
                         "dataset_pad: .lengths: set, but dataset %s is a stream, whose samples have no numbers",
                         inner->klass->name);
    trek_status status = choose_fields(p, o);
    if (status == TREK_OK)
        status = name_fields(p, o);
    size_t bytes = o->lengths ? (size_t)trek_dataset_length(inner) * sizeof(*p->lengths) : 0;
    if (status != TREK_OK || bytes == 0)
        return status;
    p->lengths = trek_alloc(bytes);
    if (p->lengths)
        memcpy(p->lengths, o->lengths, bytes);
    return p->lengths ? TREK_OK : TREK_ERR_MEMORY;
}

trek_dataset *trek_dataset_pad(trek_dataset *dataset, const trek_pad_opts *opts)
{
    static const trek_pad_opts none;
    padded *p = (padded *)trek_dataset_around(&pad_class, dataset, "dataset_pad");
    trek_dataset *base = (trek_dataset *)p;
    if (p && pad_fill(p, opts ? opts : &none) != TREK_OK)
        trek_dataset_free(&base);
    return base;
}

/* -- a function of one's own ------------------------------------------------------------------------ */

typedef struct collated {
    trek_around around;
    trek_collate_fn fn;
    bool by_rows;
    void *arg;
    void (*free_arg)(void *arg);
} collated;

/* Keeps rows [first, first + n) of what the function made from all samples. */
static trek_status keep_rows(const trek_dataset *self, int64_t first, int64_t n, trek_tensor *const *all, trek_tensor **out)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < self->n_fields && status == TREK_OK; k++)
        for (int64_t i = 0; i < n && status == TREK_OK; i++)
            status = trek_rows_put(self, k, &out[k], n, i, all[k], first + i);
    return status;
}

static trek_status call(const collated *c, const trek_fetch *of, const samples *s, trek_tensor **out)
{
    const trek_dataset *self = &c->around.base;
    trek_status status = c->fn(of, (trek_tensor *const *const *)s->rows, out, c->arg);
    if (status != TREK_OK)
        return trek_fail_after(status, "dataset collate: the function failed (%s)", trek_status_description(status));
    status = trek_batch_check(self, of->n, out);
    for (int k = 0; k < self->n_fields && status == TREK_OK; k++)
        status = trek_tensor_settle(&out[k]);
    return status;
}

static trek_status collate_get(trek_dataset *self, const trek_fetch *fetch, trek_tensor **out)
{
    const collated *c = (const collated *)self;
    trek_dataset *inner = c->around.inner;
    bool part = !c->by_rows && fetch->batch && fetch->n < fetch->n_batch;
    trek_fetch of = *fetch;
    of.indices = part ? fetch->batch : fetch->indices;
    of.n = part ? fetch->n_batch : fetch->n;
    of.batch_first = part ? 0 : fetch->batch_first;
    samples s;
    trek_tensor **all = trek_tensors_new(self->n_fields);
    trek_status status = samples_new(&s, of.n, inner->n_fields);
    if (status == TREK_OK)
        status = all ? samples_fetch(&s, inner, &of, of.indices, of.batch_first) : TREK_ERR_MEMORY;
    if (status == TREK_OK)
        status = call(c, &of, &s, part ? all : out);
    if (status == TREK_OK && part)
        status = keep_rows(self, fetch->batch_first, fetch->n, all, out);
    if (all)
        trek_tensors_clear(all, self->n_fields);
    trek_free(all);
    samples_clear(&s);
    return status;
}

static void collate_free(trek_dataset *self)
{
    const collated *c = (const collated *)self;
    if (c->free_arg)
        c->free_arg(c->arg);
    trek_around_free(self);
}

static const trek_dataset_class collate_class = {
    .name = "collate", .size = sizeof(collated), .length = trek_around_length, .get = collate_get, .free = collate_free,
};

trek_dataset *trek_dataset_collate(trek_dataset *dataset, trek_collate_fn fn, const trek_collate_opts *opts)
{
    static const trek_collate_opts none;
    const trek_collate_opts *o = opts ? opts : &none;
    collated *c = (collated *)trek_dataset_around(&collate_class, dataset, "dataset_collate");
    trek_dataset *base = (trek_dataset *)c;
    if (!c) {
        if (o->free_arg)
            o->free_arg(o->arg);
        return NULL;
    }
    c->fn = fn;
    c->by_rows = o->by_rows;
    c->arg = o->arg;
    c->free_arg = o->free_arg;
    if (!c->by_rows)
        trek_dataset_set_needs_batch(base);
    bool named = !o->fields || trek_dataset_set_fields(base, o->fields, o->n_fields) == TREK_OK;
    if (!fn)
        trek_fail_missing("dataset_collate", "function");
    if (!fn || !named)
        trek_dataset_free(&base);
    return base;
}
