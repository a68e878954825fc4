// The page that shows what an engine is doing: one HTML text with its script and its style in it,
// which the build makes of the files in serving/http/page. It holds no data and needs no key: it
// reads /v1/moesaic/events, for which it asks for one.
#pragma once

#include <string_view>

#include "serving/http/http_message.h"

namespace moesaic {

// The request comes from who reads HTML: its Accept header names text/html.
bool WantsPage(const HttpRequest& request);

HttpResponse AnswerPage();

// The HTML text itself.
std::string_view PageText();
// The Content-Security-Policy for it: its own script and style and requests to its own server, and
// nothing else. (What only a header can say is not in it.)
std::string_view PagePolicy();

}  // namespace moesaic
