"""Random JSON schemas, of everything that the server holds an output to."""

PATTERNS = ["^[a-z]{2,5}$", "^(yes|no)$", "[A-Z][0-9]+", "^\\d{3}-\\d{4}$", "^[^\"\\\\]{1,4}$"]
FORMATS = ["date", "time", "date-time", "duration", "ipv4", "ipv6", "uuid", "hostname", "uri"]
VALUES = [None, True, 0, -17, 2.5, "", "x", 'quo"te', "back\\slash", "line\nbreak", "é", "日本", [1, "a"], {"k": [None]}]


def number_bounds(random, schema, scale):
    if random.random() < 0.6:
        low = random.randint(-scale, scale)
        schema["minimum" if random.random() < 0.5 else "exclusiveMinimum"] = low
        if random.random() < 0.7:
            schema["maximum" if random.random() < 0.5 else "exclusiveMaximum"] = low + random.randint(2, scale)
    return schema


def integer(random, _):
    schema = number_bounds(random, {"type": "integer"}, random.choice([5, 100, 10**6]))
    if len(schema) == 1 and random.random() < 0.3:
        schema["multipleOf"] = random.randint(2, 12)
    return schema


def number(random, _):
    return number_bounds(random, {"type": "number"}, random.choice([3, 1000]))


def string(random, _):
    kind = random.randrange(4)
    if kind == 0:
        low = random.randint(0, 6)
        return {"type": "string", "minLength": low, "maxLength": low + random.randint(0, 10)}
    if kind == 1:
        return {"type": "string", "pattern": random.choice(PATTERNS)}
    if kind == 2:
        return {"type": "string", "format": random.choice(FORMATS)}
    return {"type": "string", "maxLength": 30}


def simple(random, _):
    return random.choice(
        [{"type": "boolean"}, {"type": "null"}, {"const": random.choice(VALUES)}, {"enum": random.sample(VALUES, 3)},
         {"type": ["integer", "null"]}, {"type": "string", "enum": ["a", 'b"', "c d"]}]
    )  # fmt: skip


def array(random, depth):
    schema = {"type": "array"}
    if random.random() < 0.3:
        schema["prefixItems"] = [any_schema(random, depth - 1) for _ in range(random.randint(1, 3))]
        schema["items"] = random.choice([False, any_schema(random, 0)])
        if schema["items"] is not False:
            schema["maxItems"] = len(schema["prefixItems"]) + 2
        return schema
    schema["items"] = any_schema(random, depth - 1)
    schema["minItems"] = random.randint(0, 2)
    schema["maxItems"] = schema["minItems"] + random.randint(0, 3)
    return schema


def object_of(random, depth):
    names = random.sample(["a", "b", "name", "two words", 'q"', "é", "x/y~z", "n1"], random.randint(1, 4))
    schema = {"type": "object", "properties": {name: any_schema(random, depth - 1) for name in names}}
    schema["required"] = [name for name in names if random.random() < 0.6]
    more = random.random()
    if more < 0.4:
        schema["additionalProperties"] = False
        if random.random() < 0.4:
            schema["minProperties"] = random.randint(0, len(names))
            schema["maxProperties"] = len(names)
    elif more < 0.6:
        schema["additionalProperties"] = any_schema(random, 0)
    return schema


def union(random, depth):
    return {"anyOf": [any_schema(random, depth - 1) for _ in range(random.randint(2, 3))]}


def any_schema(random, depth):
    kinds = [integer, number, string, simple]
    if depth > 0:
        kinds += [array, object_of, object_of, union]
    return random.choice(kinds)(random, depth)


def whole_schema(random):
    schema = object_of(random, 3)
    if random.random() < 0.3:
        schema["$defs"] = {
            "tree": {
                "type": "object",
                "properties": {"v": integer(random, 0), "of": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}},
                "required": ["v"],
            }
        }
        schema["properties"]["tree"] = {"$ref": "#/$defs/tree"}
    return schema
