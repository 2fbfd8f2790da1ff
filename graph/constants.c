/* SPDX-License-Identifier: Apache-2.0 */
/* The constants and teachers of a graph: a short list of names, which is replaced as a whole. */
#include "graph/constants.h"

#include <stdatomic.h>
#include <string.h>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "graph/constants_internal.h"
#include "graph/graph_internal.h"
#include "nn/module_internal.h"
#include "nn/module_values.h"
#include "nn/walk.h"
#include "tensor/debug.h"

/* --- one of them -------------------------------------------------------------------- */

static void release_teacher(trek_module **module)
{
    if (*module && --(*module)->own->owners == 0)
        trek_module_free(module);
    *module = NULL;
}

static void drop(trek_constant *c)
{
    if (!c || --c->lists > 0)
        return;
    trek_var_release(c->value);
    release_teacher(&c->teacher);
    trek_free(c->name);
    trek_free(c);
}

/* Makes a constant; it owns the module, also on failure. */
static trek_constant *constant_new(const char *name, uint64_t serial, trek_module *teacher)
{
    trek_constant *c = trek_calloc(1, sizeof *c);
    if (teacher)
        teacher->own->owners++;
    if (c && (c->name = trek_strdup(name))) {
        c->serial = serial;
        c->teacher = teacher;
        return c;
    }
    release_teacher(&teacher);
    trek_free(c);
    return NULL;
}

/* Makes sure that the teacher is not trained. */
static trek_status rest(trek_module *teacher)
{
    trek_status status = trek_module_freeze(teacher);
    return status == TREK_OK ? trek_module_train(teacher, false) : status;
}

static trek_status describe_entry(const char *name, trek_var *var, bool is_buffer, void *arg)
{
    char shape[TREK_SHAPE_TEXT];
    trek_text_format(arg, "%s %s\t%s %s\n", is_buffer ? "buffer" : "parameter", name, trek_dtype_name(trek_var_dtype(var)),
                     trek_shape_format(trek_var_shape(var), shape, sizeof shape));
    return TREK_OK;
}

static trek_status describe(const trek_constant *c, trek_text *text)
{
    trek_text_format(text, "%s\t%s\n", c->teacher ? "teacher" : "constant", c->name);
    trek_status status = c->teacher ? trek_walk_entries(c->teacher, TREK_WALK_PARAMS | TREK_WALK_BUFFERS, describe_entry, text)
                                    : describe_entry("", c->value, true, text);
    return text->failed ? TREK_ERR_MEMORY : status;
}

static trek_status compare(const trek_constant *own, const trek_constant *first)
{
    trek_text a = { 0 }, b = { 0 };
    trek_status status = describe(own, &a);
    if (status == TREK_OK)
        status = describe(first, &b);
    if (status == TREK_OK && (a.length != b.length || memcmp(a.data, b.data, a.length) != 0))
        status = trek_fail(TREK_ERR_ARGUMENT,
                           "graph_set_teacher: \"%s\": the teacher that was built differs from rank 0's in its parameters or "
                           "buffers; all ranks need the same",
                           first->name);
    trek_text_clear(&a);
    trek_text_clear(&b);
    return status;
}

trek_constant *trek_constant_copy(const trek_constant *first, trek_device device)
{
    trek_module *teacher = first->teacher && first->build ? first->build(device, first->arg) : NULL;
    if (first->teacher && !first->build)
        return trek_fail_null(TREK_ERR_ARGUMENT,
                              "graph_set_teacher: \"%s\": no function that builds the teacher was given; several ranks need one",
                              first->name);
    if (first->teacher && !teacher)
        return trek_error_status() != TREK_OK
                   ? NULL
                   : trek_fail_null(
                         TREK_ERR_CALLBACK,
                         "graph_set_teacher: \"%s\": the function that builds the teacher returned NULL; it must return a module",
                         first->name);
    if (teacher && teacher->own->owners > 0)
        return trek_fail_null(TREK_ERR_ARGUMENT,
                              "graph_set_teacher: \"%s\": the teacher that was built belongs to another owner; it must be new",
                              first->name);
    trek_constant *own = constant_new(first->name, first->serial, teacher);
    trek_status status = own ? TREK_OK : trek_error_status();
    if (status == TREK_OK && teacher)
        status = rest(teacher);
    if (status == TREK_OK && teacher)
        status = trek_module_to(teacher, device);
    if (status == TREK_OK && teacher)
        status = compare(own, first);
    if (status == TREK_OK)
        status = trek_constant_follow(own, first);
    if (status == TREK_OK && !teacher) {
        trek_tensor *there = trek_tensor_to(first->value->data, device);
        own->value = there ? trek_var_new(there, false) : NULL;
        trek_tensor_release(there);
        status = own->value ? TREK_OK : trek_error_status();
    }
    if (status == TREK_OK)
        return own;
    drop(own);
    return NULL;
}

typedef struct tensors {
    trek_tensor **list;
    int n, capacity;
} tensors;

static trek_status list_entry(const char *name, trek_var *var, bool is_buffer, void *arg)
{
    (void)name, (void)is_buffer;
    tensors *t = arg;
    trek_status status = trek_array_grow(&t->list, &t->capacity, t->n + 1, sizeof *t->list);
    if (status == TREK_OK)
        t->list[t->n++] = var->data;
    return status;
}

static trek_status list_tensors(const trek_constant *c, tensors *to)
{
    return c->teacher ? trek_walk_entries(c->teacher, TREK_WALK_PARAMS | TREK_WALK_BUFFERS, list_entry, to)
        : list_entry("", c->value, true, to);
}

/* On CPUs the memory is shared, so that it exists once. */
static trek_status follow(trek_tensor *own, trek_tensor *first)
{
    if (own->device.type != TREK_CPU || first->device.type != TREK_CPU)
        return trek_tensor_copy_from(own, first);
    if (own->storage == first->storage && own->data == first->data)
        return TREK_OK;
    trek_tensor *same = trek_tensor_to(first, own->device);
    if (same)
        trek_tensor_rebind(own, same);
    trek_tensor_release(same);
    return same ? TREK_OK : trek_error_status();
}

trek_status trek_constant_follow(const trek_constant *own, const trek_constant *first)
{
    tensors a = { 0 }, b = { 0 };
    if (!own->teacher)
        return TREK_OK;
    trek_status status = list_tensors(own, &a);
    if (status == TREK_OK)
        status = list_tensors(first, &b);
    for (int k = 0; k < a.n && status == TREK_OK; k++)
        status = follow(a.list[k], b.list[k]);
    trek_free(a.list);
    trek_free(b.list);
    return status;
}

/* --- the list --------------------------------------------------------------------------- */

bool trek_constants_begin(trek_constants *constants, int n)
{
    constants->n = n;
    constants->list = trek_calloc((size_t)n + 1, sizeof *constants->list);
    return constants->list != NULL;
}

void trek_constants_end(trek_constants *constants)
{
    for (int k = 0; constants->list && k < constants->n; k++)
        drop(constants->list[k]);
    trek_free(constants->list);
    *constants = (trek_constants){ 0 };
}

trek_constant *trek_constants_find(const trek_constants *constants, const char *name)
{
    for (int k = 0; k < constants->n; k++)
        if (strcmp(constants->list[k]->name, name) == 0)
            return constants->list[k];
    return NULL;
}

trek_status trek_constants_describe(const trek_constants *constants, trek_text *text)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < constants->n && status == TREK_OK; k++)
        status = describe(constants->list[k], text);
    return status;
}

trek_status trek_constants_each(const trek_constants *constants, trek_constants_fn fn, void *arg)
{
    tensors t = { 0 };
    trek_status status = TREK_OK;
    for (int k = 0; k < constants->n && status == TREK_OK; k++)
        status = list_tensors(constants->list[k], &t);
    for (int k = 0; k < t.n && status == TREK_OK; k++)
        status = fn(t.list[k], arg);
    trek_free(t.list);
    return status;
}

/* --- where the graph is ------------------------------------------------------------------- */

static trek_status note_device(const char *name, trek_var *var, bool is_buffer, void *arg)
{
    (void)name, (void)is_buffer;
    *(trek_device *)arg = trek_var_device(var);
    return TREK_ERR_STATE; /* the first one is enough */
}

static trek_status move_value(trek_constant *c, trek_device device)
{
    if (trek_device_equal(trek_var_device(c->value), device))
        return TREK_OK;
    trek_tensor *there = trek_tensor_to(c->value->data, device);
    if (!there)
        return trek_error_status();
    trek_tensor_release(c->value->data);
    c->value->data = there;
    return TREK_OK;
}

trek_status trek_constants_move(trek_graph *graph)
{
    trek_device device;
    if (graph->constants.n == 0 ||
        trek_walk_entries(&graph->base, TREK_WALK_PARAMS | TREK_WALK_BUFFERS, note_device, &device) == TREK_OK)
        return TREK_OK; /* a graph without parameters and buffers has no device */
    trek_status status = TREK_OK;
    for (int k = 0; k < graph->constants.n && status == TREK_OK; k++) {
        trek_constant *c = graph->constants.list[k];
        status = c->teacher ? trek_module_to(c->teacher, device) : move_value(c, device);
    }
    return status;
}

/* --- setting ---------------------------------------------------------------------------------- */

/* Replaces the graph's list by one without the name and with `added`, which it owns (NULL: none). Replicas follow; on
 * failure everything stays. */
static trek_status replace(trek_graph *graph, const char *name, trek_constant *added)
{
    trek_constants old = graph->constants, next;
    trek_stepper *s = graph->stepper; /* NULL: it has no replicas yet */
    if (added)
        added->lists = 1;
    if (!trek_constants_begin(&next, old.n + 1)) {
        drop(added);
        return trek_error_status();
    }
    next.n = 0;
    for (int k = 0; k < old.n; k++)
        if (strcmp(old.list[k]->name, name) != 0)
            (next.list[next.n++] = old.list[k])->lists++;
    if (added)
        next.list[next.n++] = added;
    graph->constants = next;
    trek_status status = trek_constants_move(graph);
    if (status == TREK_OK && s && s->klass->constants)
        status = s->klass->constants(s);
    if (status != TREK_OK) {
        graph->constants = old;
        old = next;
    }
    trek_constants_end(&old);
    return status;
}

static uint64_t next_serial(void)
{
    static atomic_uint_fast64_t last;
    return atomic_fetch_add(&last, 1) + 1;
}

static trek_status check(const trek_graph *graph, const char *function, const char *name)
{
    if (!graph || !name)
        return trek_fail_missing(function, graph ? "name" : "graph");
    return *name ? trek_error_status()
                 : trek_fail(TREK_ERR_ARGUMENT, "%s: name: it is empty; a name must have at least one character", function);
}

trek_status trek_graph_set_constant(trek_graph *graph, const char *name, trek_var *value)
{
    trek_status status = check(graph, "graph_set_constant", name);
    if (status != TREK_OK || !value)
        return status != TREK_OK ? status : replace(graph, name, NULL);
    trek_constant *c = constant_new(name, next_serial(), NULL);
    trek_tensor *copy = c ? trek_tensor_clone(value->data) : NULL;
    if (copy)
        c->value = trek_var_new(copy, false);
    trek_tensor_release(copy);
    if (c && c->value)
        return replace(graph, name, c);
    drop(c);
    return trek_error_status();
}

trek_status trek_graph_set_teacher(trek_graph *graph, const char *name, trek_module *module, trek_build_module_fn build,
                                   void *arg)
{
    trek_status status = check(graph, "graph_set_teacher", name);
    if (status == TREK_OK && module == &graph->base)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "graph_set_teacher: module: it is the graph itself; a graph cannot be its own teacher");
    if (trek_gone(module, "graph_set_teacher", "the module"))
        return TREK_ERR_STATE;
    if (status == TREK_OK && !module)
        return replace(graph, name, NULL);
    trek_constant *c = module ? constant_new(name ? name : "", next_serial(), module) : NULL;
    if (status == TREK_OK && !c)
        return trek_error_status();
    if (status == TREK_OK)
        status = rest(module);
    if (status != TREK_OK) {
        drop(c);
        return status;
    }
    c->build = build;
    c->arg = arg;
    return replace(graph, name, c);
}

/* --- looking ------------------------------------------------------------------------------------- */

static trek_constant *find(trek_graph *graph, const char *function, const char *name, bool teacher)
{
    if (!graph || !name)
        return trek_fail_missing(function, graph ? "name" : "graph"), NULL;
    trek_constant *c = trek_constants_find(&graph->constants, name);
    if (c && !c->teacher == !teacher)
        return c;
    return trek_fail_null(TREK_ERR_ARGUMENT, "%s: name: the graph has no %s \"%s\"", function, teacher ? "teacher" : "constant",
                          name);
}

trek_var *trek_graph_constant(trek_graph *graph, const char *name)
{
    trek_constant *c = find(graph, "graph_constant", name, false);
    return c ? c->value : NULL;
}

trek_module *trek_graph_teacher(trek_graph *graph, const char *name)
{
    trek_constant *c = find(graph, "graph_teacher", name, true);
    return c ? c->teacher : NULL;
}
