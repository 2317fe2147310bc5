-- Java's Double.valueOf. PostgreSQL's own cast accepts other texts, and raises an error where Java returns zero or
-- infinity. java_double handles usual numbers of up to 100 digits inside the calling statement; all other texts go to
-- java_any_double. Nothing is cast before the cast is known to succeed, because the planner may move a cast.

-- 0.digits * 10^point. Half way between two doubles the even one counts, as it does for the largest double and infinity,
-- and for zero and the smallest double: 2^1024 - 2^970 and 2^-1075 are written out below.
CREATE FUNCTION mqdb.java_decimal(sign text, digits text, point bigint) RETURNS double precision
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    infinity CONSTANT text COLLATE "C" :=
        '1797693134862315807937289714053034150799341327100378269361737789804449682927647509466490179775872070'
        '9633028641669288791094655554785194040263065748867150582068190890200070838367627385484581771153176447'
        '5730270069855571366959622842914819860834936475292719074168444365510704342711559699508093042880177904'
        '174497792';
    zero CONSTANT text COLLATE "C" :=
        '2470328229206232720882843964341106861825299013071623822127928412503377536351043759326499181808179961'
        '8989828234772285886546332835517796989819938739800539093906315035659515570226392290858392449105184435'
        '9318028499365361525003193704576782492193656236698636584807570015857692699037063119282795585513329278'
        '3433840935197801553124659726357957462276646527282722005637400648549997709659947045402082816622623785'
        '7393450736339007967761930577506740176324673600968951340535537458516661134223766678604162159680461914'
        '4672918403005300575308490487653917113865916462395249126236538818796362393732804238910186723484976682'
        '3508986338858792562830275599565752445550725518931369083625477918694866799496832404970582102851318545'
        '1396213837722826145437693412532098591327667236328125';
    significant text COLLATE "C" := ltrim(digits, '0');
    exponent CONSTANT bigint := point - length(digits) + length(significant);
BEGIN
    significant := rtrim(significant, '0');
    IF significant = '' OR exponent < -323 OR exponent = -323 AND significant <= zero THEN
        RETURN sign || '0';
    ELSIF exponent > 309 OR exponent = 309 AND significant >= infinity THEN
        RETURN sign || 'Infinity';
    END IF;
    -- No digit behind the 800th decides by itself; that there is one may decide.
    IF length(significant) > 800 THEN
        significant := left(significant, 800) || '1';
    END IF;
    RETURN format('%s0.%se%s', sign, significant, exponent);
END
$$;
COMMENT ON FUNCTION mqdb.java_decimal(text, text, bigint) IS 'The double nearest to 0.digits times 10 to this power; zero and infinity as in Java';

-- 0.digits * 2^point, digits in base 16.
CREATE FUNCTION mqdb.java_hexadecimal(sign text, digits text, point bigint) RETURNS double precision
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    significant text := ltrim(digits, '0');
    exponent bigint := point - 4 * (length(digits) - length(significant));
    head text;
    bits integer;
    dropped integer;
    mantissa bigint;
    remainder bigint;
    half bigint;
    number double precision;
BEGIN
    significant := rtrim(significant, '0');
    IF significant = '' THEN
        RETURN sign || '0';
    END IF;
    IF exponent > 1028 THEN
        RETURN sign || 'Infinity';
    ELSIF exponent < -1074 THEN
        RETURN sign || '0';
    END IF;
    -- The number is mantissa * 2^exponent, and a bit more if there are more digits.
    head := left(significant, 15);
    mantissa := ('x' || lpad(head, 16, '0'))::bit(64)::bigint;
    exponent := exponent - 4 * length(head);
    bits := 4 * length(head) - CASE WHEN head >= '8' COLLATE "C" THEN 0 WHEN head >= '4' COLLATE "C" THEN 1
        WHEN head >= '2' COLLATE "C" THEN 2 ELSE 3 END;
    -- A double has 53 bits, and none below 2^-1074.
    dropped := greatest(bits - 53, -1074 - exponent);
    IF dropped > 0 THEN
        remainder := mantissa & ((1::bigint << dropped) - 1);
        half := 1::bigint << (dropped - 1);
        mantissa := mantissa >> dropped;
        exponent := exponent + dropped;
        IF remainder > half OR remainder = half AND (mantissa & 1 = 1 OR length(significant) > 15) THEN
            mantissa := mantissa + 1;
        END IF;
    END IF;
    IF mantissa = 0 THEN
        RETURN sign || '0';
    ELSIF exponent > 970 AND mantissa >> (1024 - exponent)::integer > 0 THEN
        RETURN sign || 'Infinity';
    END IF;
    -- In two steps: 2^-1074 is beyond what power() can do.
    number := mantissa * 2::double precision ^ (exponent / 2) * 2::double precision ^ (exponent - exponent / 2);
    RETURN CASE sign WHEN '-' THEN -number ELSE number END;
END
$$;
COMMENT ON FUNCTION mqdb.java_hexadecimal(text, text, bigint) IS 'The double nearest to 0.digits in base 16, times 2 to this power; zero and infinity as in Java';

CREATE FUNCTION mqdb.java_any_double(string text) RETURNS double precision
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- Java trims all characters up to the blank; PostgreSQL's texts never hold U+0000.
    trimmed CONSTANT text := btrim(string, E'\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0A\x0B\x0C\x0D\x0E\x0F\x10'
        '\x11\x12\x13\x14\x15\x16\x17\x18\x19\x1A\x1B\x1C\x1D\x1E\x1F\x20');
    sign CONSTANT text := CASE WHEN starts_with(trimmed, '-') THEN '-' ELSE '' END;
    is_hexadecimal CONSTANT boolean := trimmed ~ '^[+-]?0[xX]';
    parts text[];
    power text;
    exponent bigint;
BEGIN
    IF trimmed ~ '^[+-]?NaN$' THEN
        RETURN 'NaN';
    ELSIF trimmed ~ '^[+-]?Infinity$' THEN
        RETURN sign || 'Infinity';
    ELSIF is_hexadecimal THEN
        parts := regexp_match(trimmed, '^[+-]?0[xX]([0-9a-fA-F]*)[.]?([0-9a-fA-F]*)[pP]([+-]?[0-9]+)[fFdD]?$');
    ELSE
        parts := regexp_match(trimmed, '^[+-]?([0-9]*)[.]?([0-9]*)(?:[eE]([+-]?[0-9]+))?[fFdD]?$');
    END IF;
    IF parts IS NULL OR parts[1] || parts[2] = '' THEN
        RETURN NULL;
    END IF;
    -- An exponent of more than nine digits is as good as one of nine.
    power := ltrim(coalesce(parts[3], '0'), '+-0');
    exponent := CASE WHEN length(power) > 9 THEN 999999999 ELSE concat('0', power)::bigint END;
    IF starts_with(parts[3], '-') THEN
        exponent := -exponent;
    END IF;
    RETURN CASE WHEN is_hexadecimal
        THEN mqdb.java_hexadecimal(sign, parts[1] || parts[2], exponent + 4 * length(parts[1]))
        ELSE mqdb.java_decimal(sign, parts[1] || parts[2], exponent + length(parts[1])) END;
END
$$;
COMMENT ON FUNCTION mqdb.java_any_double(text) IS 'The result of Java Double.valueOf; NULL if it would throw';

CREATE FUNCTION mqdb.java_double(string text) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN octet_length(string) <= 100 AND string ~ '^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)$'
    THEN string::double precision ELSE mqdb.java_any_double(string) END;
COMMENT ON FUNCTION mqdb.java_double(text) IS 'The result of Java Double.valueOf, fast for usual numbers; NULL if it would throw';
