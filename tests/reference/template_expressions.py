"""The small templates whose output make_template_vectors.py records."""

CONTEXT = {
    "s": "Hello World",
    "empty": "",
    "padded": "  \t two words \n",
    "lines": "one\ntwo\r\nthree\n\nfive",
    "unicode": "Grüße, 世界! ñandú ß ﬁ Σίσυφος ΟΔΟΣ",
    "emoji": "a👩‍👧b🎉",
    "quotes": "it's \"so\"",
    "control": "a\tb\nc\\d\u0001\u007f\u00a0é",
    "digits": "12345",
    "n": 7,
    "zero": 0,
    "negative": -3,
    "big": 18446744073709551615,
    "f": 2.5,
    "tiny": 1e-07,
    "huge": 1e22,
    "yes": True,
    "no": False,
    "nil": None,
    "list": [3, 1, 2],
    "words": ["banana", "Apple", "cherry", "apple"],
    "mixed": [1, "a", None, True, 2.5, [1], {"k": "v"}],
    "nested": [[1, 2], [3, [4, 5]]],
    "nothing": [],
    "d": {"b": 1, "a": 2, "C": 3},
    "deep": {"x": {"y": {"z": [10, 20, {"w": "end"}]}}},
    "shadow": {"items": "mine", "keys": 5, "get": "g", "pop": "p"},
    "users": [
        {"name": "Ann", "age": 30, "tags": ["x", "y"], "admin": True},
        {"name": "bob", "age": 25, "tags": [], "admin": False},
        {"name": "Cid", "age": 30, "tags": ["z"]},
    ],
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi <|im_end|>"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
        {"role": "tool", "content": "ok"},
    ],
    "schema": {
        "type": "object",
        "properties": {"città": {"type": "string", "description": "a \"quoted\" <b> & 'x' / \\"}},
        "required": ["città"],
        "maximum": 1.0,
        "additionalProperties": False,
        "default": None,
    },
}


def _wrap(expressions):
    return ["{{ " + line.strip() + " }}" for line in expressions.strip().split("\n") if line.strip()]


# One expression a line.
_LITERALS = r"""
1
-1
+1
007
0
00
1_000
0x1F
0b101
0o17
0xff_ff
1.5
1.0
1e3
1.5e-7
1e16
1e15
123456789012345680.0
1e22
0.1 + 0.2
1e400
-1e400
true
True
false
none
None
'a'
"a"
'it\'s'
"tab\tnew\nline"
'\x41\u00e9\U0001F600'
'\101'
'\q'
'a' 'b' "c"
[]
[1, 2, 3,]
[1, [2, 3], 'x']
()
(1,)
(1, 2)
1, 2
(1)
{}
{'a': 1}
{'a': 1, "b": [1, 2], 3: None}
{'a': 1, 'a': 2}
{1: 'x', True: 'y', 1.0: 'z'}
{[1]: 2}
{(1, 2): 3}
[none, true, 1.5, 'q"q', "q'q", 'q\'"q']
['\n\t\\\x01\xa0é世']
undefined_name
[undefined_name]
"""

_ARITHMETIC = r"""
1 + 2
1 + 2 * 3
(1 + 2) * 3
7 / 2
6 / 2
7 // 2
-7 // 2
7 // -2
7 % 3
-7 % 3
7 % -3
7.5 % 2
-7.5 % 2
7.5 // 2
-7.5 // 2
7.0 // 2
2 ** 10
2 ** -1
2 ** 3 ** 2
-2 ** 2
2 ** 0.5
2 ** 100
0 ** 0
0 ** -1
(-8.0) ** 3
10 ** 20 + 1
1 / 0
1 // 0
1 % 0
1.0 / 0
1 + 1.5
1.5 * 2
true + true
true * 3
- true
-f
-n
+n
- -n
-'a'
'a' + 'b'
'a' + 1
1 + 'a'
[1] + [2]
[1] + (2,)
(1,) + (2,)
'ab' * 3
3 * 'ab'
[1, 2] * 2
2 * [0]
'a' * -1
'a' * 2.0
'a' - 'b'
none + 1
1 + none
d + d
n + f
n * f - 1
n // f
n % f
big
big + 1
big - 1
big * 2
big // 3
-big
undefined_name + 1
1 + undefined_name
'a' + undefined_name
undefined_name * 2
-undefined_name
1 ~ 2
'a' ~ 1 ~ none ~ true ~ 1.5
'a' ~ undefined_name ~ 'b'
[1] ~ 'x'
1 + 2 ~ 3 + 4
'a' ~ 'b' * 2
1e308 * 10
3 - 2 - 1
2 * 3 % 4
100 // 7 // 2
"""

_COMPARISON = r"""
1 == 1
1 == 1.0
1 == true
0 == false
'1' == 1
'a' == 'a'
[1, 2] == [1, 2]
[1, 2] == (1, 2)
(1, 2) == (1, 2)
{'a': 1, 'b': 2} == {'b': 2, 'a': 1}
{'a': 1} != {'a': 2}
none == none
none == false
undefined_name == undefined_name
undefined_name == none
undefined_name == ''
1 != 2
1 < 2
1 < 2 < 3
1 < 3 < 2
3 > 2 > 1 == 1
1 < 2 == 2
'a' < 'b'
'B' < 'a'
'a' < 'ab'
[1, 2] < [1, 3]
[1] < [1, 2]
(1, 'a') < (1, 'b')
1 < 'a'
none < 1
1.5 <= 1.5
2 >= 3
undefined_name < 1
[1] < (2,)
d < d
'a' in 'abc'
'' in 'abc'
'd' in 'abc'
'd' not in 'abc'
1 in 'abc'
1 in [1, 2]
1.0 in [1]
'a' in d
'z' in d
none in [none]
1 in 5
1 in none
'a' in undefined_name
undefined_name in 'abc'
undefined_name in [1]
2 in range(3)
(1, 2) in [(1, 2)]
[1] in d
1 in d.values()
'b' in d.keys()
not true
not 0
not ''
not not 1
not undefined_name
not none == none
1 and 2
0 and 2
1 or 2
0 or 2
'' or 'x'
none or none
undefined_name or 'fallback'
1 and 0 or 3
not 1 and 0
not (1 and 0)
1 if true else 2
1 if false else 2
1 if false
'x' ~ (1 if false)
1 if 0 else 2 if 0 else 3
'a' if n > 5 and n < 10 else 'b'
(1 if false) is undefined
(1 if false).x
1 in [1] and 2 in [2]
n in [7] == true
"""

_ACCESS = r"""
s[0]
s[-1]
s[100]
s['x']
emoji[1]
unicode[2]
unicode[-1]
emoji[1:3]
list[0]
list[-1]
list[10]
list['x']
list[1.0]
list[true]
list.0
nested.1.1.0
d.a
d['a']
d.missing
d['missing']
d.missing.more
d['missing']['more']
d[none]
d[[1]]
d[undefined_name]
deep.x.y.z[2].w
deep['x']['y'].z[0]
deep.x.nope
deep.x.nope.nope
shadow.items is callable
shadow['items']
shadow.keys is callable
shadow['keys']
shadow.get('get')
shadow.pop
shadow['pop']
none.x
nil.x
nil.x.y
nil['x']
n.x
undefined_name.x
undefined_name['x']
undefined_name[0]
messages[0].role
messages[0]['content']
messages[-1].content
messages[1:][0].role
messages[2].content is none
messages[2].tool_calls[0].function.arguments
messages[2]['tool_calls'][0]['function']['name']
messages[0].tool_calls
messages[0].tool_calls is defined
s[1:]
s[:5]
s[1:5]
s[::-1]
s[::2]
s[-5:]
s[:-5]
s[5:1]
s[5:1:-1]
s[100:]
s[-100:3]
s[:]
s[1:8:3]
s[8:1:-3]
unicode[3:8]
emoji[::-1]
list[1:]
list[:2]
list[::-1]
list[::2]
list[5:]
list[-2:]
list[2:0:-1]
(1, 2, 3)[1:]
range(10)[2:5]
range(10)[::-2]
list[::0]
list['a':]
list[none:2]
nil[1:]
n[1:]
d[1:]
undefined_name[1:]
list[1,2]
list[]
s[n:]
s[:n - 2]
list[0:1][0]
{'a': {'b': 1}}.a.b
[1, 2, 3][1]
'abc'[1]
(1, 2)[0]
"abc".upper()[0]
words[0][0]
s.__class__
s.__class__.__name__
list.append
list.append(1)
list.pop()
list.append is defined
list.sort()
d.update({'x': 1})
d.pop('a')
d.clear()
s.nomethod
s.nomethod()
list.nope()
n()
none()
'a'()
"""

_METHODS = r"""
s.upper()
s.lower()
s.title()
s.capitalize()
s.swapcase()
unicode.upper()
unicode.lower()
unicode.title()
unicode.capitalize()
unicode.swapcase()
'ǆ'.upper() ~ 'ǆ'.title() ~ 'İ'.lower() ~ 'ŉ'.upper()
"they're bill's friends".title()
'ß'.capitalize()
padded.strip()
padded.lstrip()
padded.rstrip()
'xxabcxx'.strip('x')
'xyabcyx'.strip('xy')
'xxabc'.lstrip('x')
'abcxx'.rstrip('x')
'éaé'.strip('é')
'\u3000a\u00a0'.strip()
'abc'.strip('')
'abc'.strip(none)
'abc'.strip(1)
'a b  c'.split()
padded.split()
'a,b,,c'.split(',')
'a,b,c'.split(',', 1)
'a b c'.split(none, 1)
'  a b c  '.split(none, 1)
''.split()
''.split(',')
'abc'.split('')
'a--b--c'.split('--')
'a,b,c'.split(',')[-1]
'a,b,c'.rsplit(',', 1)
' a b  c '.rsplit(none, 1)
'a b c'.rsplit()
'aaa'.split('aa')
'aaa'.rsplit('aa')
'x</think>y</think>z'.split('</think>')[-1]
'x</think>y'.split('</think>')[0].split('<think>')[-1]
'a,b'.split(sep=',')
'a,b,c'.split(',', maxsplit=1)
lines.splitlines()
lines.splitlines(true)
''.splitlines()
'\n'.splitlines()
'a\x0bb\x0cc\x1cd\u2028e'.splitlines()
s.startswith('Hello')
s.startswith('hello')
s.startswith(('x', 'He'))
s.startswith('World', 6)
s.startswith(1)
s.endswith('World')
s.endswith('x')
s.endswith(('ld', 'x'))
s.endswith('')
s.replace('l', 'L')
s.replace('l', 'L', 1)
s.replace('', '-')
s.replace('', '-', 3)
s.replace('zzz', 'y')
s.replace('o', '')
'aaa'.replace('aa', 'b')
s.replace('l', 1)
s.find('o')
s.find('o', 5)
s.find('zz')
s.find('')
s.find('o', -3)
s.find('H', 1, 5)
unicode.find('世')
s.rfind('o')
s.rfind('o', 0, 5)
s.index('W')
s.index('zz')
s.rindex('l')
s.count('l')
s.count('')
s.count('lo')
s.count('l', 4)
'aaaa'.count('aa')
', '.join(words)
', '.join(['a'])
', '.join([])
''.join('abc')
'-'.join(d)
','.join([1, 2])
','.join(1)
'{} {}'.format('a', 1)
'{0} {1} {0}'.format('a', 'b')
'{a} {b}'.format(a=1, b='x')
'{{}} {}'.format(1)
'{:>5}|{:<5}|{:^5}|'.format('a', 'b', 'c')
'{:05d} {:+d} {: d} {:,}'.format(42, 42, 42, 1234567)
'{:.2f} {:8.3f} {:e} {:g} {:%}'.format(3.14159, 2.5, 12345.678, 0.0001, 0.25)
'{:x} {:X} {:o} {:b} {:#x}'.format(255, 255, 8, 5, 255)
'{!r} {!s}'.format('a', 'b')
'{0[a]} {0.missing}'.format(d)
'{0[a]} {1[0]}'.format(d, list)
'{:*^9}'.format('mid')
'{:.2}'.format('abc')
'{:10.3}|'.format('abcdef')
'{:{}}|'.format('a', 4)
'{:05}'.format(-3)
'{:05}'.format(2.5)
'{:d}'.format(2.5)
'{:d}'.format('a')
'{} {}'.format(1)
'{x}'.format(1)
'{'.format(1)
'}'.format(1)
'{} {0}'.format(1)
'{}'.format(none)
'{}'.format([1, 'a'])
'{:5}'.format([1])
'{:_}'.format(1234567)
'{:.0f} {:.0f} {:.0f}'.format(0.5, 1.5, 2.5)
'%s %s' % ('a', 1)
'%d' % 3.7
'%d items' % n
'%5d|%-5d|%05d|%+d' % (3, 3, 3, 3)
'%.2f %8.3f|%e' % (3.14159, 2.5, 12345.678)
'%x %X %o %#x' % (255, 255, 8, 255)
'%r' % 'a'
'%s' % none
'%s' % [1, 2]
'%s' % (1,)
'%s' % (1, 2)
'%s %s' % 'a'
'%%' % ()
'%(a)s and %(b)d' % d
'%(zz)s' % d
'%5s|%-5s|%.2s' % ('a', 'b', 'cdef')
'%c%c' % ('x', 65)
'%d' % 'a'
'%x' % 2.5
'%s'
'%z' % 1
'%' % 1
'abc' % 1
'abc' % []
'abc' % d
'%*d' % (5, 42)
'%i %u' % (3, 4)
'%g %G' % (0.00001, 1e20)
'-5'.zfill(5)
'5'.zfill(3)
'a'.center(5) ~ '|'
'ab'.center(5) ~ '|'
'abc'.center(6, '*')
'a'.ljust(4, '.') ~ 'b'.rjust(4)
'a'.center(5, 'xy')
'TestCase'.removeprefix('Test')
'TestCase'.removesuffix('Case')
'TestCase'.removesuffix('')
'a=b=c'.partition('=')
'a=b=c'.rpartition('=')
'abc'.partition('=')
'abc'.rpartition('=')
digits.isdigit()
s.isdigit()
empty.isdigit()
'²'.isdigit() ~ '²'.isdecimal() ~ '½'.isnumeric() ~ '٣'.isdecimal()
'abc'.isalpha() ~ 'ab1'.isalpha() ~ 'ab1'.isalnum() ~ 'äß'.isalpha()
' \t\n'.isspace() ~ ''.isspace()
'ABC'.isupper() ~ 'ABc'.isupper() ~ '1A'.isupper() ~ '1'.isupper()
'abc'.islower() ~ 'aBc'.islower() ~ '1a'.islower()
'Hello World'.istitle() ~ 'Hello world'.istitle()
'abc'.isascii() ~ 'é'.isascii() ~ ''.isascii()
'a\n'.isprintable() ~ 'a b'.isprintable()
d.items()
d.keys()
d.values()
d.items() | list
d.keys() | list
d.values() | list
d.get('a')
d.get('zz')
d.get('zz', 'def')
d.get('zz', default='def')
d.get()
d.items() | length
d.keys()[0]
d.items()[0]
d.copy()
list.count(1)
list.index(2)
list.index(9)
(1, 2, 1).count(1)
(1, 2, 1).index(2)
words.index('cherry')
list.copy()
s.upper
"""

_FILTERS = r"""
s | upper
s | lower
'hELLO wORLD-foo (bar) [baz]' | title
"it's a dog's life" | title
'hELLO' | capitalize
padded | trim
'xxaxx' | trim('x')
n | trim
none | upper
undefined_name | upper
undefined_name | trim
s | length
unicode | length
emoji | length
list | length
list | count
d | length
nothing | length
none | length
n | length
undefined_name | length
range(5) | length
words | map('upper') | length
undefined_name | default('x')
undefined_name | default
none | default('x')
none | default('x', true)
'' | default('x')
'' | default('x', true)
0 | d(5, true)
d.zz | d('none')
d.zz.y | d('none')
false | default('x', boolean=true)
words | join
words | join(', ')
list | join('-')
'abc' | join(',')
d | join(',')
users | join(', ', attribute='name')
users | join(', ', 'age')
[] | join(',')
[none, true, 1.5] | join('|')
none | join
undefined_name | join(',')
list | join(0)
list | first
list | last
nothing | first
nothing | last
'abc' | first
'abc' | last
'' | first
d | first
d | last
undefined_name | first
range(5) | last
list | map('string') | first
list | map('string') | last
'abc' | list
d | list
range(3) | list
undefined_name | list
n | list
list | sort
list | sort(reverse=true)
words | sort
words | sort(case_sensitive=true)
words | sort(true)
users | sort(attribute='age') | map(attribute='name') | list
users | sort(attribute='age,name') | map(attribute='name') | list
users | sort(attribute='age', reverse=true) | map(attribute='name') | join(',')
users | sort(attribute='name') | map(attribute='name') | join(',')
mixed | sort
[3, 1.5, true] | sort
['b', 'A', 'a', 'B'] | sort
'hello' | sort
d | sort
[[2, 1], [1, 2]] | sort
users | sort(attribute='nope')
words | unique | list
words | unique(true) | list
[1, 1.0, true, '1'] | unique | list
users | unique(attribute='age') | map(attribute='name') | list
[[1], [1]] | unique | list
'abcabc' | unique | join
list | reverse
list | reverse | list
'abc' | reverse
emoji | reverse
d | reverse | list
n | reverse
undefined_name | reverse | list
users | map(attribute='name') | list
users | map(attribute='tags.0') | list
users | map(attribute='tags.0', default='-') | list
users | map(attribute='admin', default='?') | list
users | map('length') | list
words | map('upper') | list
words | map('replace', 'a', 'X') | list
words | map('nofilter') | list
words | map | list
none | map('upper') | list
undefined_name | map('upper') | list
nested | map('first') | list
nested | map(attribute=0) | list
list | map('string') | join
[' a ', 'b '] | map('trim') | join('|')
list | select | list
[0, 1, '', 'a', none] | select | list
[0, 1, '', 'a', none] | reject | list
range(10) | select('even') | list
range(10) | select('divisibleby', 3) | list
range(10) | reject('odd') | list
range(10) | select('>', 5) | list
range(10) | select('in', [1, 3]) | list
mixed | select('string') | list
mixed | select('number') | list
mixed | select('mapping') | list
list | select('notest') | list
users | selectattr('admin') | map(attribute='name') | list
users | selectattr('admin', 'defined') | map(attribute='name') | list
users | rejectattr('admin') | map(attribute='name') | list
users | rejectattr('admin', 'undefined') | map(attribute='name') | list
users | selectattr('age', 'equalto', 30) | map(attribute='name') | list
users | selectattr('age', '==', 30) | map(attribute='name') | list
users | selectattr('age', 'gt', 26) | list | length
users | selectattr('tags.0', 'eq', 'z') | map(attribute='name') | list
messages | selectattr('role', 'equalto', 'system') | list | length
messages | rejectattr('role', 'in', ['system', 'tool']) | map(attribute='role') | list
messages | selectattr('content', 'none') | list | length
users | selectattr | list
[] | selectattr('x') | list
messages | selectattr('role', 'equalto', 'nobody') | first
(messages | selectattr('role', 'equalto', 'nobody')) is defined
'yes' if messages | selectattr('role', 'equalto', 'nobody') else 'no'
none | select | list
undefined_name | selectattr('x') | list
d | select | list
'abc' | select('eq', 'b') | list
s | replace('World', 'there')
s | replace('l', 'L', 2)
s | replace('', '.')
n | replace(7, 8)
s | replace('l', n)
undefined_name | replace('a', 'b')
n | string
none | string
[1, 'a'] | string
undefined_name | string
'5' | int
' 12 ' | int
'1_0' | int
'3.7' | int
'abc' | int
'abc' | int(-1)
'' | int
'0x1f' | int(0, 16)
'ff' | int(base=16)
'0b11' | int(0, 2)
'0x1f' | int
'1e3' | int
3.99 | int
-3.99 | int
true | int
none | int
none | int(5)
[1] | int
undefined_name | int
'inf' | int
'nan' | int
'+5' | int
'5' | float
'abc' | float
'abc' | float(1.5)
' 1.5 ' | float
'1e3' | float
n | float
none | float
'inf' | float
'-Infinity' | float
'nan' | float
'1_0.5' | float
'0x10' | float
undefined_name | float
-3 | abs
-2.5 | abs
negative | abs
'a' | abs
true | abs
2.5 | round
3.5 | round
2.675 | round(2)
42.55 | round(1, 'floor')
42.55 | round(1, 'ceil')
42.4 | round
5 | round
5 | round(1)
1234 | round(-2)
1250 | round(-2)
1350 | round(-2)
1234.5 | round(-2)
0.5 | round | int
-2.5 | round
'a' | round
2.5 | round(method='x')
7 | round(0, 'floor')
1e20 | round
d | items | list
d | items
none | items | list
undefined_name | items | list
list | items | list
d | dictsort
d | dictsort(true)
d | dictsort(false, 'value')
d | dictsort(reverse=true)
d | dictsort(by='x')
list | dictsort
s | safe
'<b>' | safe
'<a href="x">&\'</a>' | escape
'<b>' | e
s | truncate
s | truncate(5)
s | truncate(6)
s | truncate(5, leeway=0)
s | truncate(9, leeway=0)
s | truncate(9, true, leeway=0)
s | truncate(9, true, '', 0)
s | truncate(9, end='>>', leeway=1)
s | truncate(11, leeway=0)
s | truncate(2)
s | truncate(2, leeway=0)
s | truncate(3, leeway=0)
s | truncate(5, leeway=none)
s | truncate(5, leeway=-1)
s | truncate(0, end='', leeway=0)
'a b c d e f' | truncate(7, leeway=0)
'   abcdef' | truncate(7, leeway=0)
unicode | truncate(12, leeway=0)
unicode | truncate(12, killwords=true, end='…', leeway=0)
('word ' * 60) | truncate
empty | truncate(5)
undefined_name | truncate(5)
nil | truncate(5)
n | truncate(5)
'a\nb\nc' | indent
'a\nb\n\nc' | indent(2)
'a\nb\n\nc' | indent(2, true)
'a\nb\n\nc' | indent(2, blank=true)
'a\nb' | indent('>>')
'a\n' | indent
'' | indent
'a' | indent(first=true)
n | indent
list | min
list | max
nothing | min
nothing | max
words | min
words | max
words | max(case_sensitive=true)
users | max(attribute='age')
users | min(attribute='age') | string
mixed | max
d | max
undefined_name | max
list | sum
nothing | sum
users | sum(attribute='age')
users | sum('age', 100)
[1.5, 2] | sum
[[1], [2]] | sum(start=[])
words | sum
list | sum(start=10)
undefined_name | sum
range(7) | batch(3) | list
range(7) | batch(3, 'x') | list
range(7) | slice(3) | list
range(7) | slice(3, 'x') | list
[] | batch(3) | list
users | groupby('age')
users | groupby('age') | map(attribute='grouper') | list
users | groupby('age') | map(attribute='list') | map('length') | list
words | groupby(0) | map('first') | list
'%s and %s' | format('a', 1)
'%(x)s' | format(x=5)
'a b  c_d 1' | wordcount
'abc' | center(9) ~ '|'
'ab' | center(5) ~ '|'
s | nofilter
s | upper | lower | title
-3 | abs + 1
'a' ~ 'b' | upper
('a' ~ 'b') | upper
1 + '2' | int
[1, 2] | map('string') | join(',') ~ '!'
{'b': 1, 'a': {'x': [1, 2.0, none, true]}} | tojson
{} | tojson
[] | tojson
[[], {}] | tojson(indent=2)
schema | tojson
schema | tojson(indent=2)
schema | tojson(indent=4)
schema | tojson(indent=0)
schema | tojson(indent='\t')
schema | tojson(ensure_ascii=true)
schema | tojson(true)
schema | tojson(separators=(',', ':'))
schema | tojson(sort_keys=true)
control | tojson
control | tojson(ensure_ascii=true)
emoji | tojson
emoji | tojson(true)
quotes | tojson
unicode | tojson
1.0 | tojson
1e22 | tojson
1e-7 | tojson
0.1 | tojson
big | tojson
none | tojson
true | tojson
(1, 2) | tojson
{1: 'a', none: 'b', true: 'c', 2.5: 'd'} | tojson
{(1, 2): 3} | tojson
undefined_name | tojson
[undefined_name] | tojson
d.items() | tojson
range(3) | tojson
range(3) | list | tojson
s.upper | tojson
words | map('upper') | tojson
messages[2].tool_calls | tojson
users | tojson
'</script><!-- &' | tojson
s | tojson(nope=1)
d | attr('items') is callable
d | attr('a')
"""

_TESTS = r"""
n is defined
undefined_name is defined
d.zz is defined
d.a is defined
undefined_name is not defined
undefined_name is undefined
none is none
nil is none
n is none
undefined_name is none
nil is not none
s is string
n is string
undefined_name is string
n is number
f is number
true is number
s is number
n is integer
true is integer
f is integer
f is float
n is float
d is mapping
list is mapping
list is iterable
s is iterable
n is iterable
none is iterable
undefined_name is iterable
d is iterable
list is sequence
s is sequence
d is sequence
n is sequence
range(3) is sequence
(1,) is sequence
d.items() is sequence
d.items() is iterable
undefined_name is sequence
list | map('string') is iterable
true is boolean
1 is boolean
none is boolean
true is true
1 is true
false is false
0 is false
'' is false
4 is even
3 is odd
3 is even
2.0 is even
s is even
9 is divisibleby 3
9 is divisibleby(2)
9 is divisibleby 0
1 is eq 1
1 is equalto 1
1 is == 1
1 is ne 2
1 is lt 2
2 is gt 1
1 is le 1
1 is ge 2
1 is lessthan 2
2 is greaterthan 3
1 is in [1, 2]
1 is in([1, 2])
1 is not in [2]
'a' is in 'abc'
s is sameas s
1 is sameas 1
true is sameas 1
none is sameas none
'abc' is lower
'ABC' is upper
'Abc' is lower
1 is lower
s.upper is callable
range is callable
n is callable
'upper' is filter
'nofilter' is filter
'even' is test
'notest' is test
n is notest
n is defined and n > 3
n is defined or x.y
not n is defined
n is not none and n is number
n is number is number
undefined_name is defined and undefined_name.x
1 is defined(2)
1 is divisibleby
n is odd if yes else 'no'
[1, 2] is eq [1, 2]
{'a': 1} is eq {'a': 1}
messages[0] is mapping and messages[0].content is string
s is escaped
n is divisibleby 7 and true
'x' if n is odd
"""

_GLOBALS = r"""
range(5) | list
range(2, 5) | list
range(0, 10, 3) | list
range(5, 0, -2) | list
range(0)
range(3)
range(1, 5, 2)
range(3) == range(3)
range(3) == [0, 1, 2]
range(100001)
range(1, 2, 0)
range('a')
range()
range(2.5)
range(-3) | list
range(10)[3]
range(10)[-1]
dict(a=1, b='x')
dict({'a': 1}, b=2)
dict([('a', 1), ['b', 2]])
dict(1)
dict([1])
dict(d, a=9)
dict(**d)
namespace(a=1).a
namespace({'a': 1}).a
namespace(a=1).b
namespace(a=1).b.c
namespace is callable
raise_exception('stop')
raise_exception('a' ~ n)
strftime_now('%Y-%m-%d')
strftime_now('%d %b %Y')
strftime_now('%d %B %Y, %H:%M:%S')
strftime_now('%A %j %y %-d %%')
strftime_now('')
strftime_now()
nofunction()
nofunction(1).x
s.upper(1)
s.replace('a')
'a'.join()
s.split(nope=1)
range(*[1, 4]) | list
'{} {}'.format(*['a', 'b'])
'{a}'.format(**{'a': 1})
dict(**{'a': 1, 'b': 2})
dict(a=1, **{'a': 2})
joiner() is callable
"""

_TEMPLATES = [
    # Text and whitespace control
    "plain text",
    "",
    "\n",
    "a\n",
    "a\n\n",
    "a\r\nb\rc\n",
    "{{ 1 }}\n{{ 2 }}\n",
    "  {{ 1 }}  ",
    "a {{- 1 -}} b",
    "a\n\n{{- 1 -}}\n\n b",
    "a {{+ 1 }} b",
    "{% if true %}\nx\n{% endif %}\ny",
    "  {% if true %}\n  x\n  {% endif %}\n  y",
    "a {% if true %} x {% endif %} y",
    "a {%- if true -%} x {%- endif -%} y",
    "a\n  {%+ if true %}x{% endif +%}\ny",
    "a\n  {%+ if true +%}\nx\n  {%+ endif +%}\ny",
    "{% if true -%}\n\n  x\n\n{%- endif %}\n\ny",
    "\t {% set x = 1 %}\t \n{{ x }}",
    "a\n\u00a0{% set x = 1 %}b",
    "a {# comment #} b",
    "a\n  {# comment #}\nb",
    "a\n  {#- comment -#}  \nb",
    "a\n  {#+ comment +#}\nb",
    "{# a {{ b }} {% c %} #}x",
    "{##}x{#-#} y",
    "{# open",
    "{{ '{{' }} {{ '}}' }} {{ '%}' }}",
    "{{ {'a': {'b': 1}} }}",
    "{{ {'a': {'b': 1}}['a']['b'] }}",
    "{% raw %}{{ x }} {% y %}{% endraw %}",
    "  {% raw %}\n  {{ x }}\n  {% endraw %}\n  z",
    "a {%- raw -%} {{ x }} {%- endraw -%} b",
    "{% raw %}{% endraw %}x",
    "{% raw %}open",
    "{ {% if true %}{{% endif %} }",
    "{",
    "a { b } c % d # e {x} }} %} #}",
    "{{ 1 }}{% set x = 2 %}\n\n{{ x }}",
    "{{ 1 }}  \n  {{ 2 }}",
    "<|im_start|>{{ s }}<|im_end|>\n",
    "{{",
    "{{ 1",
    "{% if",
    "{% if true %}",
    "{% endif %}",
    "{% nosuch %}",
    "{{ }}",
    "{{ 1 2 }}",
    "{{ (1 }}",
    "{{ 1) }}",
    "{{ [1 }}",
    "{{ 'open }}",
    "{{ a. }}",
    "{{ a.. }}",
    "{{ a| }}",
    "{{ a|1 }}",
    "{{ 1 + }}",
    "{{ * 1 }}",
    "{{ a b }}",
    "{{ $ }}",
    "{{ a ? b }}",
    "{{ f(a=1, 2) }}",
    "{{ f(,) }}",
    "{{ '\\ud800' }}",
    "{{ '\\x4' }}",
    "{{ 1 if }}",
    "{{ not }}",
    "{{ x is }}",
    "{{ if }}",
    "{% for x in %}{% endfor %}",
    "{% for in list %}{% endfor %}",
    "{% for x list %}{% endfor %}",
    "{% for 1 in list %}{% endfor %}",
    "{% set 1 = 2 %}",
    "{% set true = 2 %}",
    "{% set x %}",
    "{% set x = %}",
    "{% if true %}{% else %}{% elif %}{% endif %}",
    "{% macro %}{% endmacro %}",
    "{% macro m(a=1, b) %}{% endmacro %}",
    "{% break %}",
    "{% for x in list %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
    # if
    "{% if n > 5 %}big{% elif n > 3 %}mid{% else %}small{% endif %}",
    "{% if zero %}a{% elif empty %}b{% elif nothing %}c{% else %}d{% endif %}",
    "{% if undefined_name %}a{% else %}b{% endif %}",
    "{% if no %}a{% endif %}",
    "{% if 0 %}a{% elif 1 %}b{% elif 1 %}c{% endif %}",
    "{% if 1, %}tuple{% endif %}",
    "{% if n is defined: %}x{% endif %}",
    # for
    "{% for x in list %}{{ x }},{% endfor %}",
    "{% for x in nothing %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in list %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in undefined_name %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in none %}{{ x }}{% endfor %}",
    "{% for x in n %}{{ x }}{% endfor %}",
    "{% for c in 'héy' %}[{{ c }}]{% endfor %}",
    "{% for k in d %}{{ k }}{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d | items %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d | dictsort %}{{ k }}={{ v }};{% endfor %}",
    "{% for a, b in nested %}{{ a }}-{{ b }};{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for (a, b) in [(1, 2)] %}{{ a }}{{ b }}{% endfor %}",
    "{% for a, b in list %}{{ a }}{% endfor %}",
    "{% for x in range(3) %}{% continue %}{% else %}else{% endfor %}",
    "{% for x in range(3) %}{% if x == 1 %}{% break %}{% endif %}{% else %}else{% endfor %}",
    "{{ [nil, nil] | sort }}{{ [d, d] | sort | length }}",
    "{% for x in 1, 2, 3 %}{{ x }}{% endfor %}",
    "{% for x in (1, 2) %}{{ x }}{% endfor %}",
    "{% for x in list if x > 1 %}{{ x }}{{ loop.index }}{{ loop.length }}{% endfor %}",
    "{% for x in list if x > 9 %}{{ x }}{% else %}none{% endfor %}",
    "{% for m in messages if m.role != 'system' %}{{ loop.index }}{{ m.role }}{{ loop.last }} {% endfor %}",
    "{% for x in list %}{{ loop.index }}/{{ loop.index0 }}/{{ loop.revindex }}/{{ loop.revindex0 }}/{{ loop.first }}/{{ loop.last }}/{{ loop.length }} {% endfor %}",
    "{% for x in list %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}",
    "{% for x in list %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}",
    "{% for x in list %}{{ loop.previtem.x }}{% endfor %}",
    "{% for x in range(5) %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }}{% endfor %}",
    "{% for x in [[1, 2], [3]] %}{% for y in x %}{{ loop.index }}{{ y }}{% endfor %}{{ loop.index }};{% endfor %}",
    "{% for x in list %}{% set outer = loop %}{% for y in 'ab' %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}",
    "{% for x in list %}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}",
    "{% for x in list %}{{ loop.nope }}{{ loop.nope is defined }}{% endfor %}",
    "{% for x in list %}{{ loop(x) }}{% endfor %}",
    "{{ loop }}",
    "{{ loop.index }}",
    "{% for x in [] %}{% else %}{{ loop is defined }}{% endfor %}",
    "{% for x in range(10) %}{% if x == 3 %}{% continue %}{% endif %}{% if x == 6 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in range(3) %}{% for y in range(3) %}{% if y == 1 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}",
    "{% for x in range(3) %}{% break %}{% else %}else{% endfor %}",
    "{% for x in list | map('string') %}{{ loop.length }}{{ x }}{{ loop.last }} {% endfor %}",
    "{% for x in list | reverse %}{{ x }}{% endfor %}",
    "{% for x in list[::-1] %}{{ x }}{% endfor %}",
    "{% for x in list if loop.first %}{{ x }}{% endfor %}",
    "{% for x in list recursive %}{{ x }}{% endfor %}x{{ nofunc() }}",
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
    "{%- for m in messages -%}\n  {{ m.role }}\n{%- endfor -%}",
    "{% set g = list | map('string') %}{% for x in g %}{{ x }}{% endfor %}-{% for x in g %}{{ x }}{% endfor %}",
    "{% set g = list | map('string') %}{{ g | first }}{{ g | list }}{{ g | list }}",
    "{% set g = list | map('string') %}{{ '3' in g }}{{ g | list }}",
    "{% set ns = namespace(stop=false) %}{% for x in list if not ns.stop %}{{ x }}{% set ns.stop = true %}{% endfor %}",
    "{% set ns = namespace(stop=false) %}{% for x in list if not ns.stop %}{{ x }}{{ loop.last }}{% set ns.stop = true %}{% endfor %}",
    # set and scopes
    "{% set x = 1 %}{{ x }}",
    "{% set x, y = 1, 2 %}{{ x }}{{ y }}",
    "{% set (x, y) = [1, 2] %}{{ x }}{{ y }}",
    "{% set x, y = 1 %}",
    "{% set x, y = [1, 2, 3] %}",
    "{% set x = 1, 2 %}{{ x }}",
    "{% set x = 1 %}{% for i in list %}{% set x = i %}{% endfor %}{{ x }}",
    "{% set x = 1 %}{% for i in list %}{{ x }}{% set x = 5 %}{{ x }}{% endfor %}{{ x }}",
    "{% for i in list %}{% set y = i %}{% endfor %}{{ y is defined }}",
    "{% if true %}{% set x = 1 %}{% endif %}{{ x }}",
    "{% if false %}{% set x = 1 %}{% endif %}{{ x is defined }}",
    "{% set s = 'shadow' %}{{ s }}",
    "{% for s in list %}{{ s }}{% endfor %}{{ s }}",
    "{% for i in list %}{{ i }}{% endfor %}{{ i is defined }}",
    "{% set ns = namespace(n=0) %}{% for i in list %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
    "{% set ns = namespace() %}{% set ns.a = 1 %}{{ ns.a }}{{ ns.b }}{{ ns.b is defined }}",
    "{% set ns = namespace(a=1) %}{{ ns['a'] }}",
    "{% set ns = namespace(found=false) %}{% for m in messages %}{% if m.role == 'tool' %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.found }}",
    "{% set d.a = 5 %}",
    "{% set nope.a = 5 %}",
    "{% set ns = namespace(l=[]) %}{% for i in list %}{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.l }}",
    "{% set ns = namespace(a=1) %}{% set ns.a, b = 2, 3 %}{{ ns.a }}{{ b }}",
    "{% set x %}a{{ n }}b{% endset %}{{ x }}|{{ x | length }}",
    "{% set x | upper %}abc{% endset %}{{ x }}",
    "{% set x | replace('a', 'b') | upper %}abc{% endset %}{{ x }}",
    "{% set x %}{% set y = 1 %}{{ y }}{% endset %}{{ x }}{{ y is defined }}",
    "{% set ns = namespace() %}{% set ns.x %}abc{% endset %}{{ ns.x }}",
    "{% with %}{% set x = 1 %}{{ x }}{% endwith %}{{ x is defined }}",
    "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}",
    "{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}",
    "{% filter upper %}abc {{ s }}{% endfilter %}",
    "{% filter replace('a', 'b') | upper %}aab{% endfilter %}",
    "{% filter indent(2) %}a\nb{% endfilter %}",
    "{% filter upper %}{% set q = 1 %}{{ q }}{% endfilter %}{{ q is defined }}",
    "{% for x in list %}{% filter upper %}a{% break %}b{% endfilter %}{% endfor %}c",
    "{% generation %}{{ s }}{% endgeneration %}",
    "{% for m in messages %}{% generation %}{{ m.role }}{% set z = 1 %}{% endgeneration %}{{ z is defined }}{% endfor %}",
    "{% print 1, 2 %}{% print s %}",
    # macros
    "{% macro m(a, b=2) %}[{{ a }}{{ b }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=4, a=5) }}{{ m() }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}",
    "{% macro m(a) %}{{ a.x }}{% endmacro %}{{ m() }}",
    "{% macro m(a) %}{{ a is defined }}{% endmacro %}{{ m() }}",
    "{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}",
    "{% macro m(a, b=a ~ '!') %}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, 2) }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}{{ m() }}",
    "{% macro m(a) %}{{ a }}{{ varargs | length }}{% endmacro %}{{ m(1, 2, 3) }}",
    "{% macro m() %}{{ n }}{% endmacro %}{{ m() }}",
    "{% set x = 1 %}{% macro m() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ m() }}",
    "{% macro m() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ m() }}",
    "{% macro m() %}{% set x = 5 %}{{ x }}{% endmacro %}{{ m() }}{{ x is defined }}",
    "{% macro fact(k) %}{% if k > 1 %}{{ k * (fact(k - 1) | int) }}{% else %}1{% endif %}{% endmacro %}{{ fact(6) }}",
    "{% macro a() %}a{{ b() }}{% endmacro %}{% macro b() %}b{% endmacro %}{{ a() }}",
    "{{ m() }}{% macro m() %}x{% endmacro %}",
    "{% macro m() %}x{% endmacro %}{{ m() | upper }}{{ m() ~ 'y' }}{{ m() | length }}",
    "{% macro m() %}x{% endmacro %}{{ m.name }}{{ m is callable }}",
    "{% macro m(a, b) %}{% endmacro %}{{ m.arguments }}{{ m.catch_kwargs }}{{ m.catch_varargs }}{{ m.caller }}",
    "{% macro m() %}\n  x\n{% endmacro %}\n[{{ m() }}]",
    "{% macro m() -%}\n  x\n{%- endmacro %}\n[{{ m() }}]",
    "{% for i in list %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}",
    "{% if true %}{% macro m() %}x{% endmacro %}{% endif %}{{ m() }}",
    "{% macro m(x) %}{% for y in x %}{{ loop.index }}{{ y }}{% endfor %}{% endmacro %}{{ m(list) }}",
    "{% macro m(n) %}{{ n }}{% endmacro %}{{ m(1) }}{{ n }}",
    "{% macro m(k) %}{% set ns.c = ns.c + k %}{% endmacro %}{% set ns = namespace(c=0) %}{{ m(2) }}{{ m(3) }}{{ ns.c }}",
    "{% macro outer() %}{% macro inner() %}i{% endmacro %}o{{ inner() }}{% endmacro %}{{ outer() }}{{ inner is defined }}",
    "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}body{{ n }}{% endcall %}",
    "{% macro m() %}{% for x in list %}{{ caller(x) }}{% endfor %}{% endmacro %}{% call(x) m() %}[{{ x }}]{% endcall %}",
    "{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b=9) m() %}{{ a }}{{ b }}{% endcall %}",
    "{% macro m(t) %}{{ t }}{{ caller() }}{% endmacro %}{% call m('x') %}y{% endcall %}",
    "{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}",
    "{% macro m() %}{{ caller is defined }}{% if caller %}{{ caller() }}{% endif %}{% endmacro %}{{ m() }}{% call m() %}y{% endcall %}",
    "{% call nope() %}y{% endcall %}",
    "{% call 1 %}y{% endcall %}",
    "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}",
    "{% macro f(k) %}{{ f(k + 1) }}{% endmacro %}{{ f(0) }}",
    "{% macro m(a, a) %}{% endmacro %}",
    "{% macro m(a='x', b=none) %}{{ a }}{{ b }}{% endmacro %}{{ m(*['p'], **{'b': 'q'}) }}",
    # idioms of chat templates
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}{{ system }}{{ messages | length }}",
    "{{ '<|im_start|>' + messages[1]['role'] + '\n' + messages[1]['content'] + '<|im_end|>' + '\n' }}",
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}x{% else %}y{% endif %}{% endfor %}",
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{{ add_generation_prompt }}",
    "{% if add_generation_prompt is defined and add_generation_prompt %}a{% else %}b{% endif %}",
    "{%- for message in messages %}{%- if message.content is string %}{{ message.content }}{%- elif message.content is none %}NONE{%- endif %}{%- endfor %}",
    "{{- bos_token }}x",
    "{{ (messages | last).content }}",
    "{{ messages | map(attribute='role') | join(' ') }}",
    "{% for tool in [schema] %}{{ tool | tojson(indent=4) }}{{ '\n' }}{% endfor %}",
    "{% set content = 'a</think>\\n\\nb' %}{{ content.split('</think>')[-1].lstrip('\\n') }}",
    "{% set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}{% for message in messages[::-1] %}{% set index = (messages|length - 1) - loop.index0 %}{% if ns.multi_step_tool and message.role == 'user' and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}{% set ns.multi_step_tool = false %}{% set ns.last_query_index = index %}{% endif %}{% endfor %}{{ ns.last_query_index }}",
    "{% for key, val in schema.properties.items() %}{{ key }}: {{ val.type }} {{ val.description | string }}{% endfor %}",
    "{% for k in schema if k not in ['type', 'default'] %}{{ k }}{{ ',' if not loop.last }}{% endfor %}",
    "{{ schema.required | join(', ') if schema.required is defined and schema.required is iterable and schema.required is not string else 'none' }}",
    "{%- set date = strftime_now('%d %b %Y') if strftime_now is defined else '26 Jul 2024' %}{{ date }}",
    "{{ raise_exception('Conversation roles must alternate') if messages | length > 3 }}",
    "{% set x = messages | selectattr('role', 'equalto', 'user') | list %}{{ x[-1].content if x else '' }}",
    "{{ messages[0].content[:4] ~ '...' }}",
    "{% set j = joiner(' | ') %}{% for x in list %}{{ j() }}{{ x }}{% endfor %}",
    "{% set j = joiner() %}{{ j() }}a{{ j() }}b",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.pos }}{{ c.items }}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.reset() }}{{ c.next() }}{{ c.nope }}",
    "{% set c = cycler(*list) %}{% for x in range(5) %}{{ c.next() }}{% endfor %}",
    "{% set c = cycler(1) %}{{ c is callable }}{{ c.next is callable }}{{ c.next(1) }}",
    "{{ cycler() }}",
    "{{ cycler(a=1) }}",
    "{% set n = cycler('a', 'b').next %}{{ n() }}{{ n() }}",
    "{% include 'x' %}",
    "{% import 'x' as y %}",
    "{% extends 'x' %}",
    "{% do 1 %}",
    "{% trans %}x{% endtrans %}",
]

EXPRESSIONS = (
    _wrap(_LITERALS)
    + _wrap(_ARITHMETIC)
    + _wrap(_COMPARISON)
    + _wrap(_ACCESS)
    + _wrap(_METHODS)
    + _wrap(_FILTERS)
    + _wrap(_TESTS)
    + _wrap(_GLOBALS)
    + _TEMPLATES
)

# What Jinja2 answers with an address or with the text of Python's own reprs, or what is refused
# here on purpose (template.h).
_NO_VECTOR = {
    "{{ s.upper }}",
    "{{ list | reverse }}",
    "{{ d | items }}",
    "{{ list | map('string') | last }}",
    "{% for x in list recursive %}{{ x }}{% endfor %}x{{ nofunc() }}",
}
EXPRESSIONS = [e for e in EXPRESSIONS if e not in _NO_VECTOR]
