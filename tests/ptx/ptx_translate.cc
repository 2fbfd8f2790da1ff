/* SPDX-License-Identifier: Apache-2.0 */
/* From the text of a kernel, and of the functions that it calls, to its program: names
 * become places in the register file, labels numbers, constants lanes of their own. */
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <set>

#include "ptx_program.h"

namespace ptx {

struct Name { /* of a register, or of what has an address */
    enum { REGISTER, ADDRESS, FRAME } kind;
    Operand operand;
    uint64_t address;
    uint32_t bytes;
};
typedef std::unordered_map<std::string, Name> Scope;

struct Translator {
    Module &module;
    Program *p;
    std::vector<Scope> scopes;
    std::unordered_map<std::string, uint32_t> labels;              /* of the function */
    std::vector<std::pair<uint32_t, std::string>> jumps;           /* instruction, label */
    struct Formals {
        uint32_t begin = 0;
        std::vector<Name> results, arguments;
        Scope names;
    };
    std::unordered_map<std::string, Formals> functions;
    std::vector<std::string> wanted;
    std::vector<std::pair<uint32_t, std::string>> called;          /* call, function */
    std::map<std::pair<unsigned, uint64_t>, uint32_t> known_constants;
    std::map<std::string, uint64_t> shared;                        /* of the module */
    size_t place = 0;

    explicit Translator(Module &m, Program *program) : module(m), p(program) {}
    [[noreturn]] void fail(const std::string &why) const
    {
        Instruction i;
        i.place = (uint32_t)place;
        throw Fault("ptx: " + why + " (" + p->where(i) + ")");
    }
    void translate(const std::string &entry);
    void function(const std::string &name);
    void signature(const Module::Function &f, const std::string &name);
    void parameters(const std::string &list, bool results, Formals *to);
    void statement(const std::string &text);
    void directive(const std::string &text);
    void registers(const std::string &text);
    void variable(const std::string &text);
    void instruction(const std::string &text);
    void call(const std::string &text);
    void branch(Instruction i, const std::string &arguments);
    Name *find(const std::string &name);
    Operand new_register(unsigned width);
    Operand constant(unsigned width, uint64_t value);
    Operand source(const std::string &text, const std::string &type, unsigned width);
    Operand target(const std::string &text, unsigned width);
    void memory(const std::string &text, Instruction *i, Operand *base);
    void operands(Instruction *i, const Opcode &o, const std::vector<std::string> &parts);
    uint32_t frame(uint32_t bytes);
};

static std::string trim(const std::string &s)
{
    size_t from = s.find_first_not_of(" \t\r\n"), to = s.find_last_not_of(" \t\r\n");
    return from == std::string::npos ? "" : s.substr(from, to - from + 1);
}

static std::vector<std::string> split(const std::string &s, const char *open = "[{(", const char *close = "]})")
{
    std::vector<std::string> parts;
    int depth = 0;
    size_t from = 0;
    for (size_t k = 0; k <= s.size(); k++) {
        if (k == s.size() || (s[k] == ',' && depth == 0)) {
            std::string part = trim(s.substr(from, k - from));
            if (!part.empty())
                parts.push_back(part);
            from = k + 1;
        } else {
            depth += (strchr(open, s[k]) != nullptr) - (strchr(close, s[k]) != nullptr);
        }
    }
    return parts;
}

Name *Translator::find(const std::string &name)
{
    for (size_t k = scopes.size(); k-- > 0;) {
        auto found = scopes[k].find(name);
        if (found != scopes[k].end())
            return &found->second;
    }
    return nullptr;
}

Operand Translator::new_register(unsigned width)
{
    Operand o = { p->register_bytes, (int32_t)p->registers++, (uint8_t)width };
    p->register_bytes += width ? width * LANES : 32;
    return o;
}

Operand Translator::constant(unsigned width, uint64_t value)
{
    auto made = known_constants.emplace(std::make_pair(width, value), (uint32_t)p->constants.size());
    if (made.second) {
        size_t at = p->constants.size();
        p->constants.resize(at + (width ? width * LANES : 32));
        if (!width)
            memset(&p->constants[at], value ? 0xff : 0, 4);
        for (unsigned lane = 0; width && lane < LANES; lane++)
            memcpy(&p->constants[at + lane * width], &value, width);
    }
    return { made.first->second, CONSTANT, (uint8_t)width };
}

uint32_t Translator::frame(uint32_t bytes)
{
    uint32_t at = (p->frame_bytes + 15) & ~15u;
    p->frame_bytes = at + bytes;
    return at;
}

static const char *special_names[SPECIALS] = { "%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y", "%ntid.z", "%ctaid.x",
                                               "%ctaid.y",
    "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z", "%laneid", "%warpid", "%lanemask_lt", "%lanemask_le", "%lanemask_gt",
    "%lanemask_ge", "%lanemask_eq" };

static bool number_of(const std::string &text, const std::string &type, unsigned width, uint64_t *value)
{
    char *end;
    if (text.size() > 2 && text[0] == '0' && (text[1] == 'f' || text[1] == 'F') && text.size() == 10) {
        uint32_t bits = (uint32_t)strtoul(text.c_str() + 2, &end, 16);
        float x;
        memcpy(&x, &bits, 4);
        double wide = x;
        *value = bits;
        if (width == 8)
            memcpy(value, &wide, 8);
        return true;
    }
    if (text.size() == 18 && text[0] == '0' && (text[1] == 'd' || text[1] == 'D')) {
        *value = strtoull(text.c_str() + 2, &end, 16);
        double x;
        memcpy(&x, value, 8);
        float narrow = (float)x;
        if (width == 4 && type[0] == 'f') {
            uint32_t bits;
            memcpy(&bits, &narrow, 4);
            *value = bits;
        }
        return true;
    }
    if (!isdigit((unsigned char)text[0]) && text[0] != '-')
        return false;
    *value = text[0] == '-' ? 0 - strtoull(text.c_str() + 1, &end, 0) : strtoull(text.c_str(), &end, 0);
    if (width && width < 8)
        *value &= (1ull << 8 * width) - 1;
    return *end == 0 || *end == 'U';
}

/* What is read: a register, a number, a special register, an address. */
Operand Translator::source(const std::string &text, const std::string &type, unsigned width)
{
    uint64_t value;
    if (number_of(text, type, width, &value))
        return constant(width, value);
    for (int k = 0; k < SPECIALS; k++)
        if (text == special_names[k]) {
            if (p->special[k].reg == SINK)
                p->special[k] = new_register(4);
            return p->special[k];
        }
    if (text == "WARP_SZ")
        return constant(width, LANES);
    Name *name = find(text);
    if (name && name->kind == Name::REGISTER)
        return name->operand;
    if (name && name->kind == Name::ADDRESS)
        return constant(width, name->address);
    fail("nothing is known as " + text);
}

Operand Translator::target(const std::string &text, unsigned width)
{
    if (text == "_")
        return { 0, SINK, (uint8_t)width };
    Name *name = find(text);
    if (!name || name->kind != Name::REGISTER)
        fail("no register " + text);
    return name->operand;
}

/* --- names --- */

/* .reg .b32 %r<10>, %temp */
void Translator::registers(const std::string &text)
{
    size_t dot = text.find('.', 4), space = text.find_first_of(" \t", dot);
    unsigned width = bytes_of(text.substr(dot + 1, space - dot - 1));
    width = width == 1 ? 2 : width;
    for (const std::string &name : split(text.substr(space))) {
        size_t angle = name.find('<');
        unsigned count = angle == std::string::npos ? 1 : (unsigned)atoi(name.c_str() + angle + 1);
        for (unsigned k = 0; k < count; k++) {
            std::string full = angle == std::string::npos ? name : name.substr(0, angle) + std::to_string(k);
            scopes.back()[full] = { Name::REGISTER, new_register(width), 0, 0 };
        }
    }
}

/* The name, the bytes and the alignment of .align 8 .b8 name[24] or .b32 name */
static std::string declared(const std::string &text, uint32_t *bytes, uint32_t *alignment)
{
    size_t bracket = text.find('['), end = bracket == std::string::npos ? text.find_last_not_of(" \t\n") + 1 : bracket;
    size_t name = text.find_last_of(" \t\n", end - 1) + 1, align = text.find(".align ");
    uint32_t size = 1;
    for (size_t dot = text.find('.'); dot < name; dot = text.find('.', dot + 1)) {
        std::string type = text.substr(dot + 1, text.find_first_of(" \t\n", dot) - dot - 1);
        if (type.size() > 1 && strchr("busf", type[0]) && isdigit((unsigned char)type[1]))
            size = bytes_of(type);
    }
    *bytes = size * (bracket == std::string::npos ? 1 : (uint32_t)atoi(text.c_str() + bracket + 1));
    *alignment = align == std::string::npos ? size : (uint32_t)atoi(text.c_str() + align + 7);
    return text.substr(name, end - name);
}

void Translator::variable(const std::string &text)
{
    uint32_t bytes, alignment;
    std::string name = declared(text, &bytes, &alignment);
    if (text.compare(0, 6, ".param") == 0) {
        scopes.back()[name] = { Name::FRAME, {}, frame(bytes), bytes };
        return;
    }
    bool local = text.compare(0, 6, ".local") == 0;
    uint32_t *used = local ? &p->local_bytes : &p->static_shared;
    *used = (*used + alignment - 1) / alignment * alignment;
    scopes.back()[name] = { Name::ADDRESS, {}, *used + (local ? 16u : (uint32_t)SHARED_BASE), bytes };
    *used += bytes;
}

void Translator::directive(const std::string &text)
{
    if (text.compare(0, 5, ".reg ") == 0)
        registers(text);
    else if (text.compare(0, 6, ".local") == 0 || text.compare(0, 7, ".shared") == 0 || text.compare(0, 6, ".param") == 0)
        variable(text);
    else if (text.compare(0, 7, ".pragma") && text.compare(0, 4, ".loc"))
        fail("a directive that is not known");
}

void Translator::parameters(const std::string &list, bool results, Formals *to)
{
    for (const std::string &item : split(list)) {
        uint32_t bytes, alignment;
        std::string name = declared(item, &bytes, &alignment);
        Name n = { Name::FRAME, {}, frame(bytes), bytes };
        scopes.back()[name] = n;
        (results ? to->results : to->arguments).push_back(n);
    }
}

/* Formals of functions are places in each thread's frame; those of the kernel are one for all. */
void Translator::signature(const Module::Function &f, const std::string &name)
{
    std::string head;
    for (size_t k = f.header; k < f.body - 1; k++) {
        if (module.text_[k] == '/' && module.text_[k + 1] == '/')
            k = module.text_.find('\n', k);
        head += module.text_[k];
    }
    size_t at = head.find(name + "("), open = head.find('(', at == std::string::npos ? head.find(name) : at),
        close = head.find(')', open);
    std::string list = open == std::string::npos ? "" : head.substr(open + 1, close - open - 1);
    if (!f.entry) {
        size_t first = head.find('(');
        if (first < open)
            parameters(head.substr(first + 1, head.find(')') - first - 1), true, &functions[name]);
        parameters(list, false, &functions[name]);
        return;
    }
    for (const std::string &item : split(list)) {
        uint32_t bytes, alignment;
        std::string formal = declared(item, &bytes, &alignment);
        uint32_t offset = (p->parameter_bytes + alignment - 1) / alignment * alignment;
        p->parameters.push_back({ offset, bytes });
        p->parameter_bytes = offset + bytes;
        scopes.back()[formal] = { Name::ADDRESS, {}, offset, bytes };
    }
}

/* --- instructions --- */

/* [base+offset]: the base as an operand, the offset as the instruction's number. */
void Translator::memory(const std::string &text, Instruction *i, Operand *base)
{
    std::string inner = trim(text.substr(1, text.size() - 2));
    size_t plus = inner.find('+');
    std::string name = trim(inner.substr(0, plus));
    if (plus != std::string::npos)
        i->number = strtoll(inner.c_str() + plus + 1, nullptr, 0);
    Name *n = find(name);
    if (n && n->kind == Name::FRAME) {
        i->space = CALL_PARAM;
        i->number += (int64_t)n->address;
        *base = constant(8, 0);
    } else {
        *base = source(name, "u64", 8);
    }
}

static bool is_target_pair(const std::string &text) { return text.find('|') != std::string::npos && text[0] != '{'; }

void Translator::operands(Instruction *i, const Opcode &o, const std::vector<std::string> &parts)
{
    std::vector<Operand> out, in;
    bool stores = o.base == "st" || o.base == "red" || o.base == "cp" || o.base == "prefetch" ||
        ((o.base == "bar" || o.base == "barrier") && !o.has("red")) ||
        o.base == "membar" || o.base == "fence" || o.base == "nanosleep" || o.base == "trap" || o.base == "setmaxnreg" ||
        (o.base == "wgmma" && !o.has("mma_async"));
    const std::string type = o.suffixes.empty() ? "b32" : o.type();
    unsigned width = 4;
    if (o.base == "mma" || o.base == "ldmatrix" || o.base == "cp" || o.base == "bar" || o.base == "barrier" || o.base == "vote" ||
        o.base == "wgmma" || type == "sync")
        width = 4;
    else if (o.base != "membar" && o.base != "fence" && o.base != "prefetch" && o.base != "trap" && o.base != "activemask")
        width = bytes_of(type);
    for (size_t k = 0; k < parts.size(); k++) {
        const std::string &part = parts[k];
        std::vector<Operand> &to = !stores && k == 0 ? out : in;
        if (part[0] == '[' && o.base == "cp" && o.has("tensor") && k == 1) { /* [map, {coordinates}] */
            std::vector<std::string> pair = split(part.substr(1, part.size() - 2));
            if (pair.size() != 2 || pair[1][0] != '{')
                fail("a tensor copy from what is no [map, {coordinates}]");
            in.push_back(source(pair[0], "u64", 8));
            for (const std::string &item : split(pair[1].substr(1, pair[1].size() - 2)))
                in.push_back(source(item, "s32", 4));
        } else if (part[0] == '[') {
            Operand base;
            Instruction other; /* the second address of cp.async has its own offset */
            bool second = o.base == "cp" && k > 0;
            memory(part, second ? &other : i, &base);
            if (second && other.number)
                fail("an offset that is not the first address's");
            in.push_back(base);
        } else if (part[0] == '{') {
            std::vector<std::string> items = split(part.substr(1, part.size() - 2));
            unsigned each = o.base == "mov" ? width / (unsigned)items.size() : o.base == "cvt" ? 4 : width;
            for (const std::string &item : items)
                to.push_back(&to == &out ? target(item, each) : source(item, type, each));
        } else if (is_target_pair(part)) {
            size_t bar = part.find('|');
            out.push_back(target(trim(part.substr(0, bar)), width));
            out.push_back(target(trim(part.substr(bar + 1)), 0));
        } else if (&to == &out) {
            out.push_back(target(part, width));
        } else {
            bool inverted = part[0] == '!';
            unsigned w = width;
            std::string t = type;
            if (o.base == "cvt") {
                w = bytes_of(t);
            } else if ((o.base == "shl" || o.base == "shr" || o.base == "shf") && k == parts.size() - 1) {
                w = 4;
            } else if ((o.base == "bfe" && k >= 2) || (o.base == "bfi" && k >= 3)) {
                w = 4;
            } else if ((o.base == "mad" || o.base == "madc") && o.has("wide") && k == 3) {
                w = 2 * width;
            } else if (o.base == "lop3" && k == 4) {
                w = 4;
            } else if ((o.base == "selp" && k == 3) || (o.base == "setp" && k == 3) || (o.base == "vote" && k == 1)) {
                w = 0;
            } else if ((o.base == "match" || o.base == "redux") && k == 2) {
                w = 4;
            } else if ((o.base == "bar" || o.base == "barrier") && o.has("red") && k == parts.size() - 1) {
                w = 0;
            }
            if (inverted)
                fail("an inverted operand");
            in.push_back(source(part, t, w));
        }
    }
    i->outputs = (uint8_t)out.size();
    i->inputs = (uint8_t)in.size();
    i->first = (uint32_t)p->operands.size();
    p->operands.insert(p->operands.end(), out.begin(), out.end());
    p->operands.insert(p->operands.end(), in.begin(), in.end());
}

void Translator::branch(Instruction i, const std::string &label)
{
    i.control = BRANCH;
    jumps.push_back({ (uint32_t)p->code.size(), trim(label) });
    p->code.push_back(i);
}

/* call.uni (results), function, (arguments); */
void Translator::call(const std::string &text)
{
    std::vector<std::string> parts = split(text);
    std::vector<std::string> results, arguments;
    size_t k = 0;
    if (parts[0][0] == '(')
        results = split(parts[k++].substr(1, parts[0].size() - 2));
    std::string name = parts.at(k++);
    if (k < parts.size())
        arguments = split(parts[k].substr(1, parts[k].size() - 2));
    if (!module.functions_.count(name))
        fail("a call of what is not there: " + name);
    if (!functions.count(name)) {
        std::vector<Scope> outer = std::move(scopes);
        scopes.assign(1, Scope());
        functions[name];
        signature(module.functions_[name], name);
        functions[name].names = scopes[0];
        scopes = std::move(outer);
        wanted.push_back(name);
    }
    const Formals &f = functions[name];
    if (f.results.size() != results.size() || f.arguments.size() != arguments.size())
        fail("a call with other numbers of arguments than " + name + " has");
    Call c = {};
    for (size_t a = 0; a < arguments.size(); a++) {
        Name *n = find(arguments[a]);
        if (!n || n->kind != Name::FRAME)
            fail("an argument that is no .param");
        c.before.push_back({ (uint32_t)n->address, (uint32_t)f.arguments[a].address, f.arguments[a].bytes });
    }
    for (size_t r = 0; r < results.size(); r++) {
        Name *n = find(results[r]);
        if (!n || n->kind != Name::FRAME)
            fail("a result that is no .param");
        c.after.push_back({ (uint32_t)f.results[r].address, (uint32_t)n->address, f.results[r].bytes });
    }
    Instruction i;
    i.control = CALL;
    i.place = (uint32_t)place;
    i.call = (uint32_t)p->calls.size();
    called.push_back({ i.call, name });
    p->calls.push_back(c);
    p->code.push_back(i);
}

void Translator::instruction(const std::string &text)
{
    Instruction i;
    i.place = (uint32_t)place;
    size_t at = 0;
    if (text[0] == '@') {
        size_t end = text.find_first_of(" \t");
        i.negated = text[1] == '!';
        i.has_predicate = true;
        i.predicate = source(text.substr(1 + i.negated, end - 1 - i.negated), "pred", 0);
        at = text.find_first_not_of(" \t", end);
    }
    size_t end = text.find_first_of(" \t\n", at);
    std::string name = text.substr(at, end - at), rest = end == std::string::npos ? "" : text.substr(end);
    Opcode o;
    for (size_t from = 0; from <= name.size();) {
        size_t dot = name.find('.', from);
        dot = dot == std::string::npos ? name.size() : dot;
        (o.base.empty() ? o.base : (o.suffixes.emplace_back(), o.suffixes.back())) = name.substr(from, dot - from);
        from = dot + 1;
    }
    if (o.base == "call")
        return call(rest);
    if (o.base == "bra")
        return branch(i, rest);
    if (o.base == "ret" || o.base == "exit") {
        i.control = o.base == "ret" ? RETURN : EXIT;
        p->code.push_back(i);
        return;
    }
    if (!decode_bulk(o, &i) && !decode_wgmma(o, &i) && !decode_number(o, &i) && !decode_convert(o, &i) && !decode_memory(o, &i) &&
        !decode_meeting(o, &i))
        fail("an instruction that is not known: " + name);
    operands(&i, o, split(rest));
    if (!finish_wgmma(&i))
        fail("other operands than " + name + " has");
    const Operand *first = &p->operands[i.first];
    if ((i.wide_out && i.outputs && first->reg != SINK && first->width != i.wide_out) ||
        (i.wide_in && i.inputs && first[i.outputs].width != i.wide_in))
        fail("a register of another width");
    p->multiplies = p->multiplies || i.wgmma;
    p->meets = p->meets || o.base == "mbarrier";
    p->code.push_back(i);
}

void Translator::statement(const std::string &text)
{
    if (text[0] == '.')
        directive(text);
    else
        instruction(text);
}

void Translator::function(const std::string &name)
{
    const Module::Function &f = module.functions_[name];
    const std::string &t = module.text_;
    std::string line;
    for (size_t k = f.body; k < f.end; k++) {
        char c = t[k];
        if (c == '/' && t[k + 1] == '/') {
            k = t.find('\n', k);
            c = '\n';
        }
        if (line.empty()) {
            if (isspace((unsigned char)c))
                continue;
            place = k;
            if (c == '{') {
                scopes.push_back({});
                continue;
            }
            if (c == '}') {
                scopes.pop_back();
                continue;
            }
        }
        if (c == ':' && t[k + 1] != ':' && line.find_first_of(" \t:") == std::string::npos) { /* not of shared::cta */
            labels[line] = (uint32_t)p->code.size();
            line.clear();
        } else if (c == ';') {
            statement(trim(line));
            line.clear();
        } else {
            line += c;
        }
    }
    Instruction last;
    last.control = RETURN;
    last.place = (uint32_t)place;
    p->code.push_back(last);
    for (auto &jump : jumps) {
        if (!labels.count(jump.second))
            fail("no label " + jump.second);
        p->code[jump.first].number = labels[jump.second];
    }
    jumps.clear();
    labels.clear();
}

void Translator::translate(const std::string &entry)
{
    Scope global;
    uint32_t used = 0;
    const std::string &t = module.text_;
    const Module::Function &f = module.functions_[entry];
    for (auto &v : module.variables_) {
        if (v.second.space != "shared") {
            global[v.first] = { Name::ADDRESS, {}, (uint64_t)v.second.memory.get(), (uint32_t)v.second.bytes };
            p->variables.push_back({ (uintptr_t)v.second.memory.get(), (uintptr_t)v.second.memory.get() + v.second.bytes });
        } else if (v.second.bytes && t.find(v.first, f.body) < f.end) {
            used = (used + (uint32_t)v.second.alignment - 1) / (uint32_t)v.second.alignment * (uint32_t)v.second.alignment;
            global[v.first] = { Name::ADDRESS, {}, SHARED_BASE + used, (uint32_t)v.second.bytes };
            used += (uint32_t)v.second.bytes;
        }
    }
    p->static_shared = used;
    /* dynamic shared memory begins behind all that functions declare, which is known at the end */
    uint64_t inside = 0;
    for (size_t at = f.body; (at = t.find(".shared .align", at)) < f.end; at++) {
        uint32_t bytes, alignment;
        declared(t.substr(at, t.find(';', at) - at), &bytes, &alignment);
        inside = (inside + alignment - 1) / alignment * alignment + bytes;
    }
    p->dynamic_offset = (uint32_t)((used + 15) / 16 * 16 + inside + 127) / 128 * 128 + SHARED_BASE;
    for (auto &v : module.variables_)
        if (v.second.space == "shared" && !v.second.bytes)
            global[v.first] = { Name::ADDRESS, {}, p->dynamic_offset, 0 };
    scopes.assign(1, global);
    scopes.push_back({});
    signature(f, entry);
    function(entry);
    for (size_t k = 0; k < wanted.size(); k++) {
        std::string name = wanted[k];
        scopes.assign(1, global);
        scopes.push_back({});
        scopes.back() = functions[name].names;
        functions[name].begin = (uint32_t)p->code.size();
        function(name);
    }
    for (auto &c : called)
        p->calls[c.first].target = functions[c.second].begin;
}

const Program &Module::program(const std::string &entry)
{
    std::unique_ptr<Program> &known = programs_[entry];
    if (known)
        return *known;
    if (!functions_.count(entry) || !functions_[entry].entry)
        throw Fault("ptx: " + name_ + " has no kernel " + entry);
    auto made = std::make_unique<Program>();
    made->name = entry;
    made->module = name_;
    made->text = &text_;
    made->register_bytes = 8 * LANES; /* where results go that nobody wants */
    for (Operand &s : made->special)
        s = { 0, SINK, 4 };
    Translator(*this, made.get()).translate(entry);
    known = std::move(made);
    return *known;
}

} // namespace ptx
