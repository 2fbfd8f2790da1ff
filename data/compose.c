/* SPDX-License-Identifier: Apache-2.0 */
/* Several datasets as one, a selection of a dataset's fields, and a function applied to a dataset. */
#include "data/compose.h"
#include "tensor/shapes.h"

#include <inttypes.h>
#include <string.h>

#include "data/dataset_internal.h"
#include "data/stream.h"

/* -- one after another ------------------------------------------------------------------ */

typedef struct concat {
    trek_dataset base;
    int n;
    trek_dataset **parts;
    int64_t *ends; /* [n] the index behind the last sample of each part */
} concat;

static int64_t concat_length(const trek_dataset *self)
{
    const concat *c = (const concat *)self;
    return c->ends[c->n - 1];
}

static int part_of(const concat *c, int64_t index)
{
    int low = 0, high = c->n - 1;
    while (low < high) {
        int middle = (low + high) / 2;
        if (index < c->ends[middle])
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static int64_t begin_of(const concat *c, int part) { return part > 0 ? c->ends[part - 1] : 0; }

/* Lists the samples of a fetch that belong to a part, with the part's own indices and their positions in the batch. */
static int64_t gather(const concat *c, int part, const trek_fetch *fetch, int64_t *own, int64_t *places)
{
    int64_t count = 0;
    for (int64_t i = 0; i < fetch->n; i++) {
        if (part_of(c, fetch->indices[i]) != part)
            continue;
        own[count] = fetch->indices[i] - begin_of(c, part);
        places[count++] = i;
    }
    return count;
}

/* `lists` has room for two lists. No part needs to know the batch (see concat_fill). */
static trek_status fetch_part(const concat *c, int part, const trek_fetch *fetch, int64_t *lists, trek_tensor **some,
                              trek_tensor **out)
{
    int64_t *own = lists, *places = lists + fetch->n;
    trek_fetch inner = { .indices = own, .epoch = fetch->epoch, .seed = fetch->seed };
    inner.n = gather(c, part, fetch, own, places);
    if (inner.n == 0)
        return TREK_OK;
    trek_status status = trek_dataset_fetch(c->parts[part], &inner, some);
    for (int k = 0; k < c->base.n_fields && status == TREK_OK; k++) {
        status = trek_tensor_settle(&some[k]);
        for (int64_t i = 0; i < inner.n && status == TREK_OK; i++)
            status = trek_rows_put(&c->base, k, &out[k], fetch->n, places[i], some[k], i);
    }
    trek_tensors_clear(some, c->base.n_fields);
    return status;
}

static trek_status concat_get(trek_dataset *self, const trek_fetch *fetch, trek_tensor **out)
{
    const concat *c = (const concat *)self;
    int64_t *lists = trek_alloc(2 * (size_t)fetch->n * sizeof(*lists));
    trek_tensor **some = trek_tensors_new(c->base.n_fields);
    trek_status status = lists && some ? TREK_OK : TREK_ERR_MEMORY;
    for (int part = 0; part < c->n && status == TREK_OK; part++)
        status = fetch_part(c, part, fetch, lists, some, out);
    trek_free(lists);
    trek_free(some);
    return status;
}

static void concat_free(trek_dataset *self)
{
    concat *c = (concat *)self;
    for (int k = 0; c->parts && k < c->n; k++)
        trek_dataset_let_go(&c->parts[k]);
    trek_free(c->parts);
    trek_free(c->ends);
}

static const trek_dataset_class concat_class = {
    .name = "concat", .size = sizeof(concat), .length = concat_length, .get = concat_get, .free = concat_free,
};

static trek_status fields_match(const trek_dataset *a, const trek_dataset *b, int part)
{
    bool equal = a->n_fields == b->n_fields;
    for (int k = 0; k < a->n_fields && equal; k++)
        equal = strcmp(a->fields[k], b->fields[k]) == 0;
    if (equal)
        return TREK_OK;
    return trek_fail(TREK_ERR_ARGUMENT,
                     "dataset_concat: dataset %d: the fields of %s differ from those of the first, %s; they must be the same",
                     part, b->klass->name, a->klass->name);
}

static trek_status concat_fill(concat *c)
{
    int64_t end = 0;
    for (int k = 0; k < c->n; k++) {
        trek_status status = fields_match(c->parts[0], c->parts[k], k);
        int64_t length = status == TREK_OK ? trek_dataset_length(c->parts[k]) : 0;
        if (status == TREK_OK && trek_dataset_is_stream(c->parts[k]))
            return trek_fail(TREK_ERR_UNSUPPORTED, "dataset_concat: dataset %d: %s is a stream, whose samples have no numbers", k,
                             c->parts[k]->klass->name);
        if (status != TREK_OK || length < 0)
            return trek_status_or(TREK_ERR_ARGUMENT);
        if (trek_dataset_needs_batch(c->parts[k])) /* it would see only its own samples of the batch */
            return trek_fail(TREK_ERR_ARGUMENT,
                "dataset_concat: dataset %d: samples of %s depend on their batch; apply the padding to the concatenated dataset",
                k, c->parts[k]->klass->name);
        c->ends[k] = end += length;
    }
    c->base.n_fields = c->parts[0]->n_fields; /* lives as long as parts[0] */
    c->base.fields = c->parts[0]->fields;
    return TREK_OK;
}

trek_dataset *trek_dataset_concat(trek_dataset *const *datasets, int n)
{
    if (!datasets || n < 1)
        return trek_fail_missing("dataset_concat", "datasets"), NULL;
    concat *c = (concat *)trek_dataset_new(&concat_class);
    trek_dataset *base = (trek_dataset *)c;
    bool complete = c && (c->parts = trek_calloc((size_t)n, sizeof(*c->parts))) &&
        (c->ends = trek_calloc((size_t)n, sizeof(*c->ends)));
    for (int k = 0; k < n; k++) {
        trek_dataset *part = datasets[k];
        if (trek_dataset_hold(part, "dataset_concat") != TREK_OK)
            complete = false;
        else if (c && c->parts)
            c->parts[c->n++] = part;
        else
            trek_dataset_let_go(&part);
    }
    if (c && (!complete || concat_fill(c) != TREK_OK))
        trek_dataset_free(&base);
    return base;
}

/* -- some fields -------------------------------------------------------------------------- */

typedef struct selected {
    trek_around around;
    int *places; /* [n_fields] positions in inner */
} selected;

/* Keeps the selected fields and releases all of them. */
static void pick(const trek_dataset *self, trek_tensor **all, trek_tensor **out)
{
    const selected *s = (const selected *)self;
    for (int k = 0; k < self->n_fields; k++)
        out[k] = trek_tensor_retain(all[s->places[k]]);
    trek_tensors_clear(all, s->around.inner->n_fields);
}

static trek_status select_get(trek_dataset *self, const trek_fetch *fetch, trek_tensor **out)
{
    trek_dataset *inner = ((const trek_around *)self)->inner;
    trek_tensor **all = trek_tensors_new(inner->n_fields);
    trek_status status = all ? trek_dataset_fetch(inner, fetch, all) : TREK_ERR_MEMORY;
    if (status == TREK_OK)
        pick(self, all, out);
    trek_free(all);
    return status;
}

static trek_status select_next(trek_dataset *self, void *reading, int64_t n, trek_tensor **out, int64_t *got)
{
    trek_tensor **all = trek_tensors_new(((const trek_around *)self)->inner->n_fields);
    trek_status status = all ? trek_stream_next(reading, n, all, got) : TREK_ERR_MEMORY;
    if (*got > 0)
        pick(self, all, out);
    trek_free(all);
    return status;
}

static const trek_stream_class select_stream = {
    .open = trek_around_open, .next = select_next, .skip = trek_around_skip, .close = trek_around_close,
};

static void select_free(trek_dataset *self)
{
    trek_free(((selected *)self)->places);
    trek_around_free(self);
}

static const trek_dataset_class select_class = {
    .name = "select", .size = sizeof(selected), .length = trek_around_length, .get = select_get, .free = select_free,
    .stream = &select_stream,
};

static trek_status select_fill(selected *s, const char *const *fields, const char *const *names, int n)
{
    if (n < 1 || !fields)
        return trek_fail(TREK_ERR_ARGUMENT, "dataset_select: fields: it names no fields; must name at least one");
    s->places = trek_calloc((size_t)n, sizeof(*s->places));
    if (!s->places)
        return TREK_ERR_MEMORY;
    for (int k = 0; k < n; k++) {
        s->places[k] = trek_dataset_field(s->around.inner, fields[k]);
        if (s->places[k] < 0)
            return trek_status_or(TREK_ERR_ARGUMENT);
    }
    return trek_dataset_set_fields(&s->around.base, names ? names : fields, n);
}

trek_dataset *trek_dataset_select(trek_dataset *dataset, const char *const *fields, const char *const *names, int n)
{
    selected *s = (selected *)trek_dataset_around(&select_class, dataset, "dataset_select");
    trek_dataset *base = (trek_dataset *)s;
    if (s && select_fill(s, fields, names, n) != TREK_OK)
        trek_dataset_free(&base);
    return base;
}

/* -- a function ----------------------------------------------------------------------------- */

typedef struct mapped {
    trek_around around;
    trek_map_fn fn;
    bool one_by_one;
    void *arg;
    void (*free_arg)(void *arg);
} mapped;

static trek_status call(const mapped *m, const trek_fetch *of, trek_tensor *const *in, trek_tensor **out)
{
    const trek_dataset *self = &m->around.base;
    trek_status status = m->fn(of, in, out, m->arg);
    if (status != TREK_OK)
        return trek_fail_after(status, "dataset map: the function failed (%s)", trek_status_description(status));
    for (int k = 0; k < self->n_fields && status == TREK_OK; k++) {
        if (!out[k])
            return trek_fail(TREK_ERR_CALLBACK,
                             "dataset map: the function returned no tensor for \"%s\"; it must return one for each field",
                             self->fields[k]);
        trek_shape shape = trek_tensor_shape(out[k]);
        char text[TREK_SHAPE_TEXT];
        if (shape.ndim < 1 || shape.sizes[0] != of->n)
            return trek_fail(TREK_ERR_SHAPE,
                             "dataset map: the function returned \"%s\" of shape %s for %" PRId64
                             " samples; the first dimension must be the number of samples",
                             self->fields[k], trek_shape_format(shape, text, sizeof text), of->n);
        status = trek_tensor_settle(&out[k]);
    }
    return status;
}

/* Copies row i of the batch as a batch of one. */
static trek_status take_row(const trek_dataset *inner, trek_tensor *const *all, int64_t i, trek_tensor **row)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < inner->n_fields && status == TREK_OK; k++)
        status = trek_rows_put(inner, k, &row[k], 1, 0, all[k], i);
    return status;
}

static trek_status call_one_by_one(const mapped *m, const trek_fetch *fetch, trek_tensor *const *in, trek_tensor **out)
{
    const trek_dataset *self = &m->around.base, *inner = m->around.inner;
    trek_tensor **row = trek_tensors_new(inner->n_fields), **made = trek_tensors_new(self->n_fields);
    trek_status status = row && made ? TREK_OK : TREK_ERR_MEMORY;
    trek_fetch one = *fetch;
    one.n = 1;
    for (int64_t i = 0; i < fetch->n && status == TREK_OK; i++) {
        one.indices = fetch->indices + i;
        one.batch_first = fetch->batch_first + i;
        status = take_row(inner, in, i, row);
        if (status == TREK_OK)
            status = call(m, &one, row, made);
        for (int k = 0; k < self->n_fields && status == TREK_OK; k++)
            status = trek_rows_put(self, k, &out[k], fetch->n, i, made[k], 0);
        trek_tensors_clear(row, inner->n_fields);
        trek_tensors_clear(made, self->n_fields);
    }
    trek_free(row);
    trek_free(made);
    return status;
}

/* Releases `in`. */
static trek_status map_batch(const trek_dataset *self, const trek_fetch *fetch, trek_tensor **in, trek_tensor **out)
{
    const mapped *m = (const mapped *)self;
    int n = m->around.inner->n_fields;
    trek_status status = TREK_OK;
    for (int k = 0; k < n && status == TREK_OK; k++)
        status = trek_tensor_settle(&in[k]);
    if (status == TREK_OK)
        status = m->one_by_one ? call_one_by_one(m, fetch, in, out) : call(m, fetch, in, out);
    trek_tensors_clear(in, n);
    return status;
}

static trek_status map_get(trek_dataset *self, const trek_fetch *fetch, trek_tensor **out)
{
    trek_dataset *inner = ((const trek_around *)self)->inner;
    trek_tensor **in = trek_tensors_new(inner->n_fields);
    trek_status status = in ? trek_dataset_fetch(inner, fetch, in) : TREK_ERR_MEMORY;
    if (status == TREK_OK)
        status = map_batch(self, fetch, in, out);
    trek_free(in);
    return status;
}

static trek_status map_next(trek_dataset *self, void *reading, int64_t n, trek_tensor **out, int64_t *got)
{
    int64_t first = trek_stream_position(reading);
    trek_tensor **in = trek_tensors_new(((const trek_around *)self)->inner->n_fields);
    trek_status status = in ? trek_stream_next(reading, n, in, got) : TREK_ERR_MEMORY;
    int64_t *numbers = *got > 0 ? trek_alloc((size_t)*got * sizeof(*numbers)) : NULL;
    for (int64_t i = 0; i < *got && numbers; i++)
        numbers[i] = first + i;
    trek_fetch of = { .indices = numbers, .n = *got };
    trek_stream_key(reading, &of.epoch, &of.seed);
    if (numbers)
        status = map_batch(self, &of, in, out);
    else if (*got > 0)
        status = TREK_ERR_MEMORY;
    if (in)
        trek_tensors_clear(in, ((const trek_around *)self)->inner->n_fields);
    trek_free(numbers);
    trek_free(in);
    return status;
}

static const trek_stream_class map_stream = {
    .open = trek_around_open, .next = map_next, .skip = trek_around_skip, .close = trek_around_close,
};

static void map_free(trek_dataset *self)
{
    const mapped *m = (const mapped *)self;
    if (m->free_arg)
        m->free_arg(m->arg);
    trek_around_free(self);
}

static const trek_dataset_class map_class = {
    .name = "map", .size = sizeof(mapped), .length = trek_around_length, .get = map_get, .free = map_free,
    .stream = &map_stream,
};

trek_dataset *trek_dataset_map(trek_dataset *dataset, trek_map_fn fn, const trek_dataset_map_opts *opts)
{
    static const trek_dataset_map_opts none;
    const trek_dataset_map_opts *o = opts ? opts : &none;
    mapped *m = (mapped *)trek_dataset_around(&map_class, dataset, "dataset_map");
    trek_dataset *base = (trek_dataset *)m;
    if (!m) {
        if (o->free_arg)
            o->free_arg(o->arg);
        return NULL;
    }
    m->fn = fn;
    m->one_by_one = o->one_by_one;
    m->arg = o->arg;
    m->free_arg = o->free_arg;
    bool named = !o->fields || trek_dataset_set_fields(base, o->fields, o->n_fields) == TREK_OK;
    if (!fn)
        trek_fail_missing("dataset_map", "function");
    if (!fn || !named)
        trek_dataset_free(&base);
    return base;
}
