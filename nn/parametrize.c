/* SPDX-License-Identifier: Apache-2.0 */
/* Weights computed from other parameters. A layer's child "parametrizations" has one child for each such weight, with
 * the originals and the modules that compute the weight. */
#include "nn/parametrize.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/var_internal.h"
#include "nn/module_internal.h"
#include "nn/walk.h"
#include "tensor/debug.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

/* One weight: its parameters are the originals, its children the parametrizations. */
typedef struct made_weight {
    trek_module base;
    trek_var **place;         /* the layer's field */
    int index;                /* the weight's former position among the layer's parameters */
    trek_shape shape;
    trek_dtype dtype;
    trek_right_inverse_fn *inverses; /* [n_children] */
    int cap_inverses;
} made_weight;

static void made_weight_free(trek_module *self) { trek_free(((made_weight *)self)->inverses); }

static void made_weight_describe(const trek_module *self, char *text, size_t size)
{
    char shape[TREK_SHAPE_TEXT];
    const made_weight *w = (const made_weight *)self;
    snprintf(text, size, "%s %s", trek_dtype_name(w->dtype), trek_shape_format(w->shape, shape, sizeof shape));
}

static const trek_module_class made_weight_class = { .name = "parametrized", .size = sizeof(made_weight),
                                                     .free = made_weight_free, .describe = made_weight_describe };

/* The computed weights are in the layer's fields while the layer runs, which one thread does at a time. */
typedef struct made_weights {
    trek_module base;
    pthread_mutex_t lock;
    bool has_lock;
} made_weights;

static void made_weights_free(trek_module *self)
{
    made_weights *all = (made_weights *)self;
    if (all->has_lock)
        pthread_mutex_destroy(&all->lock);
}

static const trek_module_class container_class = { .name = "parametrizations", .size = sizeof(made_weights),
                                                   .free = made_weights_free };

/* Returns NULL on failure (MEMORY or STATE). */
static trek_module *container_new(void)
{
    trek_module *base = trek_module_new(&container_class);
    if (!base)
        return NULL;
    made_weights *all = (made_weights *)base;
    all->has_lock = pthread_mutex_init(&all->lock, NULL) == 0;
    if (!all->has_lock) {
        trek_module_free(&base);
        return trek_fail_null(TREK_ERR_STATE, "parametrize: a lock cannot be made");
    }
    return base;
}

/* --- making --------------------------------------------------------------------------------- */

static trek_var *make(made_weight *w)
{
    trek_var *originals[TREK_MOST_ORIGINALS];
    int n = w->base.own->n_params;
    for (int k = 0; k < n; k++)
        originals[k] = w->base.own->params[k].var;
    trek_autocast_begin(TREK_F32);
    trek_module *first = w->base.own->children[0].module;
    trek_var *y = n == 1 ? trek_forward(first, originals[0]) : trek_forward_many(first, originals, n);
    for (int k = 1; k < w->base.own->n_children && y; k++)
        y = trek_forward(w->base.own->children[k].module, y);
    trek_autocast_end();
    return y;
}

static trek_var *stand_in(const made_weight *w) { return w->base.own->params[w->base.own->n_params - 1].var; }

static void put_back(trek_module *container)
{
    for (int k = 0; k < container->own->n_children; k++) {
        const made_weight *w = (const made_weight *)container->own->children[k].module;
        *w->place = stand_in(w);
    }
}

void trek_weights_drop(trek_module *module)
{
    trek_module *container = module->own->parametrizations;
    if (!container)
        return;
    put_back(container);
    pthread_mutex_unlock(&((made_weights *)container)->lock);
}

trek_status trek_weights_make(trek_module *module)
{
    trek_module *container = module->own->parametrizations;
    if (container)
        pthread_mutex_lock(&((made_weights *)container)->lock);
    for (int k = 0; container && k < container->own->n_children; k++) {
        made_weight *w = (made_weight *)container->own->children[k].module;
        trek_var *weight = make(w);
        if (!weight)
            return trek_error_status();
        *w->place = weight;
    }
    return TREK_OK;
}

/* --- finding --------------------------------------------------------------------------------- */

static made_weight *find_made(const trek_module *module, const char *name)
{
    const trek_module *container = module->own->parametrizations;
    for (int k = 0; container && k < container->own->n_children; k++)
        if (strcmp(container->own->children[k].name, name) == 0)
            return (made_weight *)container->own->children[k].module;
    return NULL;
}

static int find_param(const trek_module *module, const char *name)
{
    for (int k = 0; k < module->own->n_params; k++)
        if (strcmp(module->own->params[k].name, name) == 0)
            return k;
    return -1;
}

static trek_status check_module(const char *function, const trek_module *module, const char *name)
{
    if (!module || !name)
        return trek_fail_missing(function, module ? "name" : "module");
    return trek_gone(module, function, "the module") ? TREK_ERR_STATE : TREK_OK;
}

/* Returns NULL with an error set if the weight is not parametrised. */
static made_weight *need_made(const char *function, const trek_module *module, const char *name)
{
    if (check_module(function, module, name) != TREK_OK)
        return NULL;
    made_weight *w = find_made(module, name);
    return w ? w
             : trek_fail_null(TREK_ERR_ARGUMENT, "%s: name: the %s has no parametrised \"%s\"", function,
                              module->own->klass->name,
                              name);
}

bool trek_is_parametrized(const trek_module *module, const char *name)
{
    if (!module || trek_gone(module, "is_parametrized", "the module"))
        return false;
    return name ? find_made(module, name) != NULL : module->own->parametrizations != NULL;
}

trek_var *trek_parametrized_weight(trek_module *module, const char *name)
{
    if (check_module("parametrized_weight", module, name) != TREK_OK)
        return NULL;
    made_weight *w = find_made(module, name);
    int k = find_param(module, name);
    if (!w && k < 0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "parametrized_weight: name: the %s has no \"%s\"", module->own->klass->name,
                              name);
    return w ? make(w) : module->own->params[k].var;
}

/* --- from weight to originals ------------------------------------------------------------------ */

static trek_status invert(trek_right_inverse_fn inverse, trek_module *parametrization, trek_var *weight, trek_var **originals,
                          int n)
{
    for (int k = 0; k < n; k++)
        originals[k] = NULL;
    trek_status status = inverse(parametrization, weight, originals, n);
    for (int k = 0; k < n && status == TREK_OK; k++)
        if (!originals[k])
            status = trek_fail_after(TREK_ERR_CALLBACK, "%s: right inverse: no original %d; it must return all",
                                     parametrization->own->klass->name, k);
    return status;
}

/* With `lenient`, a parametrization without a right inverse passes the weight through unchanged. */
static trek_status invert_all(made_weight *w, trek_var *weight, trek_var **originals, bool lenient)
{
    trek_status status = TREK_OK;
    for (int k = w->base.own->n_children - 1; k >= 0 && status == TREK_OK; k--) {
        trek_module *part = w->base.own->children[k].module;
        int n = k == 0 ? w->base.own->n_params : 1;
        if (w->inverses[k]) {
            status = invert(w->inverses[k], part, weight, originals, n);
        } else {
            originals[0] = weight;
            if (!lenient)
                status = trek_fail(TREK_ERR_UNSUPPORTED, "parametrized_assign: the %s has no right inverse, which it needs",
                                   part->own->klass->name);
        }
        weight = originals[0];
    }
    return status;
}

static trek_status assign(made_weight *w, trek_var *weight, bool lenient)
{
    trek_var *originals[TREK_MOST_ORIGINALS];
    char text[TREK_SHAPE_TEXT], other[TREK_SHAPE_TEXT];
    int n = w->base.own->n_params;
    trek_status status = invert_all(w, weight, originals, lenient);
    for (int k = 0; k < n && status == TREK_OK; k++)
        if (!trek_shape_equal(trek_var_shape(originals[k]), trek_var_shape(w->base.own->params[k].var)))
            status = trek_fail(TREK_ERR_SHAPE, "parametrized_assign: right inverse: %s for an original of %s; must be equal",
                               trek_shape_format(trek_var_shape(originals[k]), text, sizeof text),
                               trek_shape_format(trek_var_shape(w->base.own->params[k].var), other, sizeof other));
    for (int k = 0; k < n && status == TREK_OK; k++)
        status = trek_tensor_copy_from(trek_var_data(w->base.own->params[k].var), trek_var_data(originals[k]));
    return status;
}

trek_status trek_parametrized_assign(trek_module *module, const char *name, trek_tensor *weight)
{
    if (!weight)
        return trek_fail_missing("parametrized_assign", "weight");
    made_weight *w = need_made("parametrized_assign", module, name);
    if (!w)
        return trek_error_status();
    char text[TREK_SHAPE_TEXT], other[TREK_SHAPE_TEXT];
    if (!trek_shape_equal(trek_tensor_shape(weight), w->shape))
        return trek_fail(TREK_ERR_SHAPE, "parametrized_assign: weight: \"%s\" is %s, not %s", name,
                         trek_shape_format(w->shape, text, sizeof text),
                         trek_shape_format(trek_tensor_shape(weight), other, sizeof other));
    if (!trek_dtype_is_float(trek_tensor_dtype(weight)))
        return trek_fail(TREK_ERR_DTYPE, "parametrized_assign: weight: dtype %s; must be floating",
                         trek_dtype_name(trek_tensor_dtype(weight)));
    trek_scope scope = trek_scope_begin();
    trek_no_grad_begin();
    trek_tensor *cast = trek_tensor_cast(weight, w->dtype);
    trek_tensor *here = cast ? trek_tensor_to(cast, trek_var_device(stand_in(w))) : NULL;
    trek_tensor_release(cast);
    trek_var *var = here ? trek_var_from(here) : NULL;
    trek_status status = var ? assign(w, var, false) : trek_error_status();
    trek_no_grad_end();
    trek_scope_end(scope);
    return status;
}

/* The class writes plain weights, from which the originals are then computed. */
trek_status trek_weights_reset(trek_module *module)
{
    trek_module *container = module->own->parametrizations;
    if (!container)
        return module->own->klass->reset(module);
    trek_scope scope = trek_scope_begin();
    trek_no_grad_begin();
    trek_status status = trek_error_status();
    for (int k = 0; k < container->own->n_children && status == TREK_OK; k++) {
        made_weight *w = (made_weight *)container->own->children[k].module;
        trek_var *plain = trek_var_from(trek_tensor_zeros(w->shape, w->dtype, trek_var_device(stand_in(w))));
        if (plain)
            *w->place = plain;
        status = plain ? TREK_OK : trek_error_status();
    }
    if (status == TREK_OK)
        status = module->own->klass->reset(module);
    for (int k = 0; k < container->own->n_children && status == TREK_OK; k++) {
        made_weight *w = (made_weight *)container->own->children[k].module;
        status = assign(w, *w->place, true);
    }
    put_back(container);
    trek_no_grad_end();
    trek_scope_end(scope);
    return status;
}

/* --- registering ----------------------------------------------------------------------------------- */

static trek_status is_module(const char *name, trek_module *module, void *wanted)
{
    (void)name;
    return module == wanted ? TREK_ERR_CANCELLED : TREK_OK;
}

static trek_status set_training(const char *name, trek_module *module, void *training)
{
    (void)name;
    module->own->training = *(bool *)training;
    return TREK_OK;
}

/* Checks that the computed tensor can stand for the weight. */
static trek_status check_made(const trek_var *made, const char *name, trek_shape shape, trek_dtype dtype)
{
    char text[TREK_SHAPE_TEXT], other[TREK_SHAPE_TEXT];
    if (!made)
        return trek_error_status();
    if (!trek_shape_equal(trek_var_shape(made), shape))
        return trek_fail(TREK_ERR_SHAPE, "parametrize: \"%s\" has shape %s, but %s was made for it; must be equal", name,
                         trek_shape_format(shape, text, sizeof text),
                         trek_shape_format(trek_var_shape(made), other, sizeof other));
    if (trek_var_dtype(made) != dtype)
        return trek_fail(TREK_ERR_DTYPE, "parametrize: \"%s\" has dtype %s, but %s was made for it; must be equal", name,
                         trek_dtype_name(dtype), trek_dtype_name(trek_var_dtype(made)));
    return TREK_OK;
}

/* Appends `part` as the last of the weight's parametrizations. */
static trek_status append_part(made_weight *w, trek_module *part, trek_right_inverse_fn inverse)
{
    char name[16];
    snprintf(name, sizeof name, "%d", w->base.own->n_children);
    int n = w->base.own->n_children + 1;
    trek_status status = trek_array_grow(&w->inverses, &w->cap_inverses, n, sizeof *w->inverses);
    if (status == TREK_OK)
        status = trek_module_try_add(&w->base, name, part);
    if (status == TREK_OK)
        w->inverses[n - 1] = inverse;
    return status;
}

static trek_status add_originals(made_weight *w, trek_var *weight, bool shared, trek_module *part,
                                 const trek_parametrize_opts *opts)
{
    trek_var *originals[TREK_MOST_ORIGINALS] = { weight };
    int n = opts->originals;
    trek_status status = opts->right_inverse ? invert(opts->right_inverse, part, weight, originals, n) : TREK_OK;
    for (int k = 0; k < n && status == TREK_OK; k++) {
        char name[24] = "original";
        if (n > 1)
            snprintf(name, sizeof name, "original%d", k);
        trek_var *added = originals[k] == weight && n == 1
            ? trek_module_share_param(&w->base, name, TREK_NO_FIELD, weight)
            : trek_module_param(&w->base, name, TREK_NO_FIELD, trek_tensor_clone(trek_var_data(originals[k])));
        status = added ? trek_var_set_requires_grad(added, trek_var_requires_grad(weight)) : trek_error_status();
        if (added == weight)
            w->base.own->params[k].shared = shared; /* this module owns it to the same degree as the layer did */
    }
    return status;
}

static made_weight *made_weight_new(trek_module *module, int k, trek_module *part, const trek_parametrize_opts *opts)
{
    trek_var *weight = module->own->params[k].var;
    made_weight *w = (made_weight *)trek_module_new(&made_weight_class);
    if (!w)
        return NULL;
    w->place = module->own->params[k].place;
    w->index = k;
    w->shape = trek_var_shape(weight);
    w->dtype = trek_var_dtype(weight);
    w->base.own->training = module->own->training;
    trek_status status = append_part(w, part, opts->right_inverse);
    if (status == TREK_OK)
        status = add_originals(w, weight, module->own->params[k].shared, part, opts);
    if (status == TREK_OK)
        status = check_made(make(w), module->own->params[k].name, w->shape, w->dtype);
    trek_module *base = &w->base;
    if (status != TREK_OK)
        trek_module_free(&base);
    return (made_weight *)base;
}

/* Returns the container with room for the weight. It is made with the first weight. */
static trek_status attach(trek_module *module, const char *name, made_weight *w)
{
    trek_module *container = module->own->parametrizations, *base = &w->base;
    if (container)
        return trek_module_try_add(container, name, base);
    container = container_new();
    if (!container) {
        trek_module_free(&base);
        return trek_error_status();
    }
    container->own->training = module->own->training;
    trek_status status = trek_module_try_add(container, name, base);
    if (status != TREK_OK) {
        trek_module_free(&container);
        return status;
    }
    status = trek_module_try_add(module, "parametrizations", container);
    if (status == TREK_OK)
        module->own->parametrizations = container;
    return status;
}

static trek_status begin(trek_module *module, int k, trek_module *part, const trek_parametrize_opts *opts)
{
    const char *name = module->own->params[k].name;
    if (!module->own->params[k].place)
        return trek_fail(TREK_ERR_UNSUPPORTED, "parametrize: the %s has no field for \"%s\"", module->own->klass->name, name);
    if (module->own->params[k].var->data->storage->parent)
        return trek_fail(TREK_ERR_STATE, "parametrize: \"%s\" lives in an optimizer's arena; make the optimizer afterwards",
                         name);
    made_weight *w = made_weight_new(module, k, part, opts);
    if (!w)
        return trek_error_status();
    trek_status status = attach(module, name, w);
    if (status != TREK_OK)
        return status;
    trek_module_drop_param(module, k);
    *w->place = stand_in(w);
    return TREK_OK;
}

static trek_status continue_with(made_weight *w, const char *name, trek_module *part, const trek_parametrize_opts *opts)
{
    if (opts->originals != 1)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "parametrize: .originals: %d, but \"%s\" is already parametrised; a further parametrization takes 1",
                         opts->originals, name);
    trek_var *made = make(w);
    trek_status status = made ? check_made(trek_forward(part, made), name, w->shape, w->dtype) : trek_error_status();
    return status == TREK_OK ? append_part(w, part, opts->right_inverse) : status;
}

static trek_status run(trek_module *module, const char *name, trek_module *part, const trek_parametrize_opts *opts)
{
    made_weight *w = find_made(module, name);
    int k = find_param(module, name);
    if (!w && k < 0)
        return trek_fail(TREK_ERR_ARGUMENT, "parametrize: name: the %s has no parameter \"%s\"", module->own->klass->name, name);
    if (opts->originals < 1 || opts->originals > TREK_MOST_ORIGINALS || (opts->originals > 1 && !opts->right_inverse))
        return trek_fail(TREK_ERR_ARGUMENT,
                         "parametrize: .originals: %d; must be 1 to %d, and with more than one there must be a right inverse",
                         opts->originals, TREK_MOST_ORIGINALS);
    trek_status status = trek_walk_modules(part, 0, set_training, &module->own->training);
    trek_scope scope = trek_scope_begin();
    if (status == TREK_OK && scope.depth == 0)
        status = trek_error_status();
    trek_no_grad_begin();
    if (status == TREK_OK)
        status = w ? continue_with(w, name, part, opts) : begin(module, k, part, opts);
    trek_no_grad_end();
    trek_scope_end(scope);
    return status;
}

trek_status trek_parametrize(trek_module *module, const char *name, trek_module *parametrization,
                             const trek_parametrize_opts *opts)
{
    trek_parametrize_opts own = opts ? *opts : (trek_parametrize_opts){ 0 };
    own.originals = own.originals ? own.originals : 1;
    trek_status status = parametrization ? check_module("parametrize", module, name)
                                         : trek_fail_missing("parametrize", "parametrization");
    if (!parametrization || trek_gone(parametrization, "parametrize", "the parametrization"))
        return trek_error_status();
    if (status == TREK_OK && trek_walk_modules(parametrization, 0, is_module, module) == TREK_ERR_CANCELLED)
        return trek_fail(TREK_ERR_ARGUMENT, "parametrize: parametrization: it contains the %s itself", module->own->klass->name);
    parametrization->own->owners++; /* keeps it alive if a later step fails */
    if (status == TREK_OK)
        status = run(module, name, parametrization, &own);
    if (--parametrization->own->owners == 0)
        trek_module_free(&parametrization);
    return status;
}

/* --- removing ---------------------------------------------------------------------------------------- */

/* Returns what the parameter becomes. The caller releases it. */
static trek_var *folded(made_weight *w, bool leave_parametrized)
{
    trek_var *original = w->base.own->params[0].var;
    if (!leave_parametrized)
        return trek_var_retain(original);
    trek_var *made = make(w);
    if (!made)
        return NULL;
    if (w->base.own->n_params == 1 && trek_shape_equal(trek_var_shape(original), w->shape) &&
        trek_var_dtype(original) == w->dtype)
        return trek_tensor_copy_from(trek_var_data(original), trek_var_data(made)) == TREK_OK ? trek_var_retain(original) : NULL;
    trek_tensor *copy = trek_tensor_clone(trek_var_data(made));
    trek_var *var = copy ? trek_var_new(copy, trek_var_requires_grad(original)) : NULL;
    trek_tensor_release(copy);
    return var;
}

static trek_status detach(trek_module *module, const char *name, made_weight *w, trek_var *var)
{
    trek_module *container = module->own->parametrizations;
    trek_status status =
        trek_module_insert_param(module, w->index, name, var, w->place, var == w->base.own->params[0].var &&
                                 w->base.own->params[0].shared);
    if (status != TREK_OK)
        return status;
    trek_module_drop_child(container, &w->base);
    if (container->own->n_children == 0) {
        module->own->parametrizations = NULL;
        trek_module_drop_child(module, container);
    }
    return TREK_OK;
}

trek_status trek_parametrize_remove(trek_module *module, const char *name, bool leave_parametrized)
{
    made_weight *w = need_made("parametrize_remove", module, name);
    if (!w)
        return trek_error_status();
    if (!leave_parametrized && w->base.own->n_params > 1)
        return trek_fail(TREK_ERR_ARGUMENT, "parametrize_remove: \"%s\" has %d originals, and none is the weight itself", name,
                         w->base.own->n_params);
    trek_scope scope = trek_scope_begin();
    trek_no_grad_begin();
    trek_var *var = folded(w, leave_parametrized);
    trek_status status = var ? detach(module, name, w, var) : trek_error_status();
    trek_var_release(var);
    trek_no_grad_end();
    trek_scope_end(scope);
    return status;
}
