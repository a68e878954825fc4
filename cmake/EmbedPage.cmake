# cmake -DPARTS=page.html;page.css;a.js;b.js -DOUTPUT=page_text.cpp -P EmbedPage.cmake
# Puts the style and the scripts into the HTML, where it says @STYLE@ and @SCRIPT@, and the whole into a C++ source
# as an array of bytes (serving/http/page.h). The scripts share one scope, in the order in which they are named.
set(style "")
set(script "")
# Not file(READ) into list handling: semicolons and brackets of the texts stay what they are.
foreach(part IN LISTS PARTS)
  file(READ "${part}" text)
  if(part MATCHES "\\.html$")
    set(page "${text}")
  elseif(part MATCHES "\\.css$")
    string(APPEND style "${text}")
  else()
    string(APPEND script "${text}")
  endif()
endforeach()
string(REPLACE "@STYLE@" "${style}" page "${page}")
string(REPLACE "@SCRIPT@" "'use strict';\n(() => {\n${script}})();\n" page "${page}")
file(WRITE "${OUTPUT}.html" "${page}")
file(READ "${OUTPUT}.html" bytes HEX)
string(LENGTH "${bytes}" digits)
math(EXPR count "${digits} / 2")
string(REGEX REPLACE "(..)" "'\\\\x\\1'," bytes "${bytes}")
file(WRITE "${OUTPUT}" "// Made by cmake/EmbedPage.cmake.
namespace moesaic {
extern const char kPageText[];
extern const unsigned long kPageBytes;
const char kPageText[] = {${bytes}};
const unsigned long kPageBytes = ${count};
}  // namespace moesaic
")
